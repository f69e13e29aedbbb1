#!/usr/bin/env python3
"""Products of integers that round their inputs as they come, on a transformer: celer's float and dynamic int8 beside ONNX
Runtime's, in runs that alternate; medians, ratios, and each one's noise to signal against the float network.

  python bench/peers/bench_dynamic.py build/celer                        6 layers of 384, 128 tokens, 2 threads
  python bench/peers/bench_dynamic.py build/celer --net net.onnx --input ids=ids.npy --input mask=mask.npy

Needs numpy, onnx and onnxruntime. The network has random weights (tests/networks/transformer.py) unless one is given.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import bench_graphs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/networks"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time instead of wall time, for one thread on a busy machine")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--net", type=pathlib.Path)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time goes with --threads 1: threads that wait use CPU time too")
    return args


def nsr(exact, other):
    return max(float(((exact[k] - other[k]) ** 2).sum() / max((exact[k] ** 2).sum(), 1e-30)) for k in exact.files)


def main():
    args = parse()
    from onnxruntime.quantization import QuantType, quantize_dynamic
    timer = args.celer.resolve().parent / "bench/celer_graph_timer"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        net, flags = args.net, ["--threads", args.threads]
        if not net:
            import transformer
            net = folder / "net.onnx"
            net.write_bytes(transformer.make(args.layers, args.hidden, args.heads).SerializeToString())
            for key, value in transformer.inputs(args.tokens, hidden_tokens=0).items():
                np.save(folder / f"{key}.npy", value)
                flags += ["--input", f"{key}={folder / key}.npy"]
        for given in args.input:
            flags += ["--input", given]
        ours, theirs, channel = folder / "ours.onnx", folder / "theirs.onnx", folder / "channel.onnx"
        subprocess.run([args.celer, "quantize", net, "--dynamic", "-o", ours], check=True)
        for path, per_channel in ((theirs, False), (channel, True)):
            quantize_dynamic(str(net), str(path), per_channel=per_channel, weight_type=QuantType.QInt8,
                             op_types_to_quantize=["MatMul", "Gemm"])
        peer = [sys.executable, bench_graphs.HERE / "graph_peer.py", "onnxruntime"]
        runners = {"celer float": [timer, net], "celer, celer's file": [timer, ours], "celer, ORT's file": [timer, theirs],
                   "ORT float": [*peer, net], "ORT, its file": [*peer, theirs], "ORT, its file per channel": [*peer, channel],
                   "ORT, celer's file": [*peer, ours]}
        outputs = {who: folder / f"{i}.npz" for i, who in enumerate(runners)}
        running = {who: bench_graphs.Runtime([*command, *flags, "--output", outputs[who]], folder / "log", "cpu_ms" if args.cpu_time else "ms")
                   for who, command in runners.items()}
        for turn in range(args.runs + 3):
            for runtime in running.values():
                ms = runtime.run()
                if turn >= 3:  # the first ones are warm-up
                    runtime.samples.append(ms)
                time.sleep(0.05)  # threads that still spin for work fall asleep
        exact = np.load(outputs["ORT float"])
        base = statistics.median(running["celer, celer's file"].samples)
        print(f"{'':<28}{'median ms':>10}{'p10':>8}{'p90':>8}{'x celer int8':>14}{'noise to signal':>18}")
        for who, runtime in running.items():
            tenths = statistics.quantiles(runtime.samples, n=10)
            median = statistics.median(runtime.samples)
            print(f"{who:<28}{median:>10.2f}{tenths[0]:>8.2f}{tenths[-1]:>8.2f}{median / base:>14.2f}"
                  f"{nsr(exact, np.load(outputs[who])):>18.1e}")
            runtime.close()


if __name__ == "__main__":
    main()
