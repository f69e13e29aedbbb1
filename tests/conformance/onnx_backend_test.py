#!/usr/bin/env python3
"""Finds the data of ONNX's backend tests in the `onnx` package and gives it to onnx_backend."""
import importlib.util
import pathlib
import subprocess
import sys

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent


def main():
    spec = importlib.util.find_spec("onnx")
    if spec is None or not spec.origin:
        print("skipped: the onnx package is not in this Python; tools/requirements.txt has it")
        return SKIPPED
    data = pathlib.Path(spec.origin).parent / "backend" / "test" / "data"
    if not (data / "node").is_dir():
        print(f"skipped: {data} holds no tests; onnx 1.22 is the last version that has them")
        return SKIPPED
    lists = ["--passing", HERE / "passing.txt", "--skips", HERE / "skips.txt"]
    return subprocess.run([sys.argv[1], data, *lists, *sys.argv[2:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
