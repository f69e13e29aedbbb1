#!/usr/bin/env python3
"""PyTorch's exports at full size, through ONNX and through PNNX: exports_test.py CELER [NAME...] [--python PYTHON]

Makes networks with random weights (bench/peers/make_networks.py) and runs each as ONNX, as the pair that the real pnnx
converter wrote, and as the pair that `celer graph optimize --as-is` writes of the ONNX file; each as it stands and optimised.
Every output is within 1e-4 of PyTorch's, relative to its scale. Heavy (PyTorch and gigabytes of files), so it is no part of
`make test`: `make test-networks` runs it. What cannot be installed is told, and the test is skipped."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
import bench_graphs  # noqa: E402

NAMES = ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "yolov5n", "yolov8n", "unet32",
         "vit_tiny", "minilm_l6"]
TOLERANCE = 1e-4


def run(celer, model, inputs, out, *flags):
    """The first output, or what celer said."""
    said = subprocess.run([celer, "graph", "inspect", model, "--json"], capture_output=True, text=True, timeout=600)
    if said.returncode != 0:
        return said.stderr.strip()
    names = [port["name"] for port in json.loads(said.stdout)["inputs"]]
    command = [celer, "graph", "run", model, "--output", out, *flags]
    for name, path in zip(names, inputs):
        command += ["--input", f"{name}={path}"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    return np.load(out) if done.returncode == 0 else done.stderr.strip()


def check(celer, folder, name):
    """What was wrong, by the form of the network."""
    expected = np.load(folder / f"{name}.y.npy")
    inputs = sorted(folder.glob(f"{name}.x*.npy"))
    ours = folder / f"{name}.celer.param"
    forms = {"onnx": folder / f"{name}.onnx", "pnnx": folder / f"{name}.pnnx.param", "own pnnx": ours}
    written = subprocess.run([celer, "graph", "optimize", forms["onnx"], "-o", ours, "--as-is"], capture_output=True, text=True,
                             timeout=600)
    wrong, errors = [], []
    if written.returncode != 0:
        wrong.append(f"own pnnx: {written.stderr.strip()}")
        del forms["own pnnx"]
    for form, model in forms.items():
        for flags in ([], ["--no-optimize"]):
            got = run(celer, model, inputs, folder / f"{name}.out.npy", *flags)
            if isinstance(got, str) or got.shape != expected.shape:
                wrong.append(f"{form} {' '.join(flags)}: {got if isinstance(got, str) else got.shape}")
                continue
            errors.append(float(np.abs(got - expected).max() / np.abs(expected).max()))
            if not errors[-1] <= TOLERANCE:
                wrong.append(f"{form} {' '.join(flags)}: an error of {errors[-1]:.1e}")
    if name == "resnet50":
        said = subprocess.run([celer, "graph", "inspect", forms["onnx"], "--json", "--optimized"], capture_output=True, text=True,
                              timeout=600)
        memory = json.loads(said.stdout)["activation_bytes"]
        if memory["planned"] > 1.1 * memory["live_at_once"]:
            wrong.append(f"activations: {memory['planned']} bytes, of which {memory['live_at_once']} live at once")
    return wrong, max(errors, default=0.0)


def main():
    default = pathlib.Path(os.environ.get("CELER_CACHE", pathlib.Path.home() / ".cache/celer")) / "bench-graphs"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--cache", type=pathlib.Path, default=default, help=f"of bench_graphs.py (default {default})")
    parser.add_argument("--python", type=pathlib.Path, help="has torch, torchvision, onnx and pnnx; else they are installed")
    args = parser.parse_args()
    unknown = set(args.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    args.cache.mkdir(parents=True, exist_ok=True)
    args.peers = []
    python = bench_graphs.environment(args)
    if subprocess.run([python, "-c", "import torch, torchvision, onnx, pnnx"], capture_output=True).returncode != 0:
        print(f"skipped: {python} has not all of torch, torchvision, onnx and pnnx")
        return 77
    folder = args.cache / "networks"
    folder.mkdir(exist_ok=True)
    failed = 0
    for name in args.names or NAMES:
        if not (folder / f"{name}.y.npy").exists():
            (folder / f"{name}.done").unlink(missing_ok=True)
        made = subprocess.run([python, ROOT / "bench/peers/make_networks.py", folder, name], capture_output=True, text=True)
        if made.returncode != 0:
            print(f"{name}: no export: {made.stderr.strip().splitlines()[-1:]}", flush=True)
            failed += 1
            continue
        wrong, error = check(args.celer, folder, name)
        print(f"{name}: {'WRONG' if wrong else 'equal as ONNX and as PNNX'}, errors up to {error:.1e}", flush=True)
        for what in wrong:
            print(f"    {what}", flush=True)
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
