#!/usr/bin/env python3
"""Full-size networks of PyTorch: torch_test.py CELER [NAME...]

ResNet-18, MobileNet-v2 and -v3, a UNet and YOLOv5n with random weights. Each is exported twice, by torch.onnx and by the
real pnnx, and then changes its format and back: ONNX to PNNX to ONNX, PNNX to ONNX to PNNX. Every file gives what
PyTorch gives, optimised and not. Needs torch, torchvision, onnx and pnnx (made with 2.10.0, 0.25.0, 1.22.0 and
20260526); exits with 77 when one is missing."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
try:
    import numpy as np
    import onnx  # noqa: F401
    import pnnx
    import torch
    import torchvision
    from torch import nn

    from make_golden_networks import ConvUnit, UNet
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOLERANCE = 1e-4  # of the output's scale


class Bottleneck(nn.Module):
    def __init__(self, c, add):
        super().__init__()
        self.one, self.two, self.add = ConvUnit(c, c), ConvUnit(c, c, 3), add

    def forward(self, x):
        y = self.two(self.one(x))
        return x + y if self.add else y


class C3(nn.Module):
    def __init__(self, a, b, n, add=True):
        super().__init__()
        self.one, self.two, self.three = ConvUnit(a, b // 2), ConvUnit(a, b // 2), ConvUnit(b, b)
        self.body = nn.Sequential(*(Bottleneck(b // 2, add) for _ in range(n)))

    def forward(self, x):
        return self.three(torch.cat((self.body(self.one(x)), self.two(x)), 1))


class Yolov5n(nn.Module):
    """The nano size of YOLOv5, release 6: 1.87 M parameters with 80 classes."""

    def __init__(self, classes=80):
        super().__init__()
        self.stem, self.down1, self.c1 = ConvUnit(3, 16, 6, 2, pad=2), ConvUnit(16, 32, 3, 2), C3(32, 32, 1)
        self.down2, self.c2 = ConvUnit(32, 64, 3, 2), C3(64, 64, 2)
        self.down3, self.c3 = ConvUnit(64, 128, 3, 2), C3(128, 128, 3)
        self.down4, self.c4 = ConvUnit(128, 256, 3, 2), C3(256, 256, 1)
        self.in1, self.in2, self.pool = ConvUnit(256, 128), ConvUnit(512, 256), nn.MaxPool2d(5, 1, 2)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.side1, self.n1 = ConvUnit(256, 128), C3(256, 128, 1, False)
        self.side2, self.n2 = ConvUnit(128, 64), C3(128, 64, 1, False)
        self.back1, self.n3 = ConvUnit(64, 64, 3, 2), C3(128, 128, 1, False)
        self.back2, self.n4 = ConvUnit(128, 128, 3, 2), C3(256, 256, 1, False)
        self.width = classes + 5
        self.heads = nn.ModuleList(nn.Conv2d(c, 3 * self.width, 1) for c in (64, 128, 256))
        self.register_buffer("anchors", torch.rand(3, 3, 1, 1, 2) * 100 + 10)

    def forward(self, x):
        p3 = self.c2(self.down2(self.c1(self.down1(self.stem(x)))))
        p4 = self.c3(self.down3(p3))
        x = self.in1(self.c4(self.down4(p4)))
        y = self.pool(x)
        z = self.pool(y)
        top = self.side1(self.in2(torch.cat((x, y, z, self.pool(z)), 1)))
        middle = self.side2(self.n1(torch.cat((self.up(top), p4), 1)))
        p3 = self.n2(torch.cat((self.up(middle), p3), 1))
        p4 = self.n3(torch.cat((self.back1(p3), middle), 1))
        p5 = self.n4(torch.cat((self.back2(p4), top), 1))
        boxes = []
        for i, (features, stride) in enumerate(((p3, 8.0), (p4, 16.0), (p5, 32.0))):
            y = self.heads[i](features)
            b, _, ny, nx = y.shape
            y = y.view(b, 3, self.width, ny, nx).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            gy, gx = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
            xy = (y[..., 0:2] * 2 - 0.5 + torch.stack((gx, gy), 2).float()) * stride
            wh = (y[..., 2:4] * 2) ** 2 * self.anchors[i]
            boxes.append(torch.cat((xy, wh, y[..., 4:]), -1).view(b, -1, self.width))
        return torch.cat(boxes, 1)


NETWORKS = {
    "resnet18": (lambda: torchvision.models.resnet18(weights=None), (1, 3, 224, 224)),
    "mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(weights=None), (1, 3, 224, 224)),
    "mobilenet_v3": (lambda: torchvision.models.mobilenet_v3_small(weights=None), (1, 3, 224, 224)),
    "unet": (lambda: UNet(32), (1, 3, 256, 256)),
    "yolov5n": (Yolov5n, (1, 3, 640, 640)),
}


def run(celer, *args):
    result = subprocess.run([celer, "graph", *map(str, args)], capture_output=True, text=True, timeout=1200)
    if result.returncode != 0:
        raise RuntimeError((result.stderr or result.stdout).strip())


def error_of(celer, path, x, y, *flags):
    np.save("x.npy", x)
    run(celer, "run", path, "--input", "x.npy", "--output", "y.npz", *flags)
    with np.load("y.npz") as out:
        got = out[out.files[0]]
    return float(np.abs(got - y).max() / np.abs(y).max()) if got.shape == y.shape else float("inf")


def check(celer, name):
    """The worst error, and where it was."""
    make, shape = NETWORKS[name]
    torch.manual_seed(5)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    model.eval()
    x = torch.randn(*shape)
    with torch.no_grad():
        y = model(x).numpy()
    pnnx.export(model, f"{name}.pt", (x,))
    torch.onnx.export(model, (x,), f"{name}.onnx", dynamo=False, opset_version=17)
    files = [f"{name}.onnx", f"{name}.pnnx.param"]
    for source, steps in ((files[0], ("a.param", "b.onnx")), (files[1], ("c.onnx", "d.param"))):
        for target in steps:
            run(celer, "optimize", source, "-o", target, "--as-is")
            files.append(target)
            source = target
    run(celer, "optimize", files[0], "-o", "e.onnx")
    files.append("e.onnx")
    return max((error_of(celer, path, x.numpy(), y, *flags), f"{path} {' '.join(flags)}")
               for path in files for flags in ((), ("--no-optimize",)))


def main():
    celer, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(NETWORKS)
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            error, where = check(celer, name)
            os.chdir(ROOT)
        wrong += not error <= TOLERANCE
        print(f"{name}: {'equal' if error <= TOLERANCE else 'DIFFERS'}, the largest error is {error:.2g} of the "
              f"output's scale ({where.strip()})", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
