#!/usr/bin/env python3
"""Makes tests/golden/hidden.safetensors: what transformers' models say before their output head.

  python tools/make_golden_hidden.py --golden tests/golden

One tensor for each of tests/golden/models, f32 [24, hidden]: `last_hidden_state` for the prompt of its golden.json, with the
weights upcast to f32 and eager attention, as tools/make_golden_models.py has them. Versions: tools/requirements-golden.txt.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "configs"))
import minicpm_reference  # noqa: E402


def known(folder, temp):
    """The same model under a type that transformers has."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "kimi_k2":
        return folder
    shutil.copytree(folder, temp, dirs_exist_ok=True)
    (pathlib.Path(temp) / "config.json").write_text(json.dumps(config | {"model_type": "deepseek_v3"}))
    return temp


def hidden_of(folder):
    prompt = json.loads((folder / "golden.json").read_text())["prompt"]
    with tempfile.TemporaryDirectory() as temp:
        return last_hidden(known(folder, temp), prompt)


def last_hidden(folder, prompt):
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    model = (whole.model if whole.base_model is whole else whole.base_model).eval()
    with torch.no_grad():
        return model(torch.tensor([prompt])).last_hidden_state[0].contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "tests/golden")
    golden = parser.parse_args().golden
    transformers.logging.set_verbosity_error()
    minicpm_reference.register()
    folders = sorted(path for path in (golden / "models").iterdir() if path.is_dir())
    tensors = {folder.name: hidden_of(folder) for folder in folders}
    save_file(tensors, golden / "hidden.safetensors")
    for name, tensor in tensors.items():
        print(name, list(tensor.shape), f"{float(tensor.abs().max()):.3f}")


if __name__ == "__main__":
    main()
