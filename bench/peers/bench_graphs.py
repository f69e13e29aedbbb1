#!/usr/bin/env python3
"""celer beside ONNX Runtime, ncnn, OpenVINO, MNN and PyTorch: ten networks, batch 1, f32, runs that alternate; medians and
ratios.

  make bench-peers ARGS="--graphs"                                       everything: about ten minutes after the first time
  make bench-peers ARGS="--graphs --only resnet50 yolov8n --threads 2"   a part of it
  make bench-peers ARGS="--graphs --runs 5 --peers onnxruntime ncnn"     a quick look

The first time a virtual environment with the peers, torch and pnnx is made in the cache folder (2 GB), and eight networks
with random weights are exported there (make_networks.py); the two of PP-OCR come with their weights out of the wheel of
rapidocr-onnxruntime. Each runtime is a process of its own that stays; a round runs every one of them once. Where a peer does
not install or does not take a network, its column stays empty and the reason is told.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PICTURES = HERE.parents[1] / "tests/networks/pictures.py"
# What pip calls them; None: the exporter needs it anyway.
PACKAGES = {"onnxruntime": "onnxruntime", "ncnn": "ncnn", "mnn": "MNN", "openvino": "openvino", "torch": None}
PEERS = list(PACKAGES)
EXPORT_PACKAGES = ["numpy", "onnx", "torch==2.10.0", "torchvision==0.25.0", "pnnx"]
MADE = ["resnet50", "mobilenet_v2", "mobilenet_v3_small", "yolov5n", "yolov8n", "unet32", "vit_tiny", "minilm_l6"]
# Name, file in the wheel, shape of the input.
OCR = {"ppocrv4_det": ("ch_PP-OCRv4_det_infer.onnx", (1, 3, 640, 640)),
       "ppocrv4_rec": ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320))}
NETWORKS = MADE + list(OCR)


def say(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def stop(text):
    sys.exit(f"bench-peers: {text}")


def parse():
    default = pathlib.Path(os.environ.get("CELER_CACHE", pathlib.Path.home() / ".cache/celer")) / "bench-graphs"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--celer", type=pathlib.Path, default=HERE.parents[1] / "build/celer", help="its folder is the build's")
    parser.add_argument("--only", nargs="+", metavar="NETWORK", choices=NETWORKS, help=", ".join(NETWORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--runs", type=int, default=20, help="of each runtime (default 20)")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time instead of wall time, for one thread on a busy machine")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, help="default all")
    parser.add_argument("--cache", type=pathlib.Path, default=default, help=f"default {default}")
    parser.add_argument("--python", type=pathlib.Path, help="an interpreter that has the peers; none is installed then")
    parser.add_argument("--networks", type=pathlib.Path, metavar="FOLDER",
                        help="NAME.onnx and NAME.x0.npy are there already; nothing is exported or fetched")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write every sample there")
    args = parser.parse_args()
    if args.runs < 1 or min(args.threads) < 1:
        parser.error("--runs and --threads must be at least 1")
    if args.cpu_time and args.threads != [1]:
        parser.error("--cpu-time goes with --threads 1: threads that wait use CPU time too")
    return args


def environment(args):
    """The interpreter of the peers; installs what is missing, each package on its own, so that one that does not exist here
    does not keep the others away."""
    if args.python:
        return args.python
    folder = args.cache / "venv"
    python = folder / "bin/python"
    if not python.exists():
        say(f"making {folder}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for package in EXPORT_PACKAGES + [PACKAGES[peer] for peer in args.peers if PACKAGES[peer]]:
        done = folder / f"{package.split('==')[0]}.installed"
        if done.exists():
            continue
        say(f"installing {package}")
        if subprocess.run([python, "-m", "pip", "install", "-q", package]).returncode == 0:
            done.touch()
        else:
            say(f"{package} does not install here; what needs it is left out")
    return python


def make_networks(args, python):
    if args.networks:
        missing = [name for name in args.only or NETWORKS if not (args.networks / f"{name}.onnx").exists()]
        if missing:
            stop(f"{args.networks} has no {missing[0]}.onnx; --only leaves networks out")
        return args.networks.resolve()
    folder = args.cache / "networks"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = args.only or NETWORKS
    missing = [name for name in wanted if name in MADE and not (folder / f"{name}.done").exists()]
    if missing:
        say(f"exporting {', '.join(missing)}")
        with open(folder / "export.log", "w") as log:
            if subprocess.run([python, HERE / "make_networks.py", folder, *missing], stdout=log, stderr=log).returncode != 0:
                stop(f"the export failed; see {folder / 'export.log'}")
    for name, (file, shape) in OCR.items():
        if name not in wanted or (folder / f"{name}.done").exists():
            continue
        say(f"fetching {file}")
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "rapidocr-onnxruntime"], check=True)
        with zipfile.ZipFile(next(folder.glob("rapidocr_onnxruntime-*.whl"))) as wheel:
            inside = next(entry for entry in wheel.namelist() if entry.endswith(file))
            (folder / f"{name}.onnx").write_bytes(wheel.read(inside))
        subprocess.run([python, PICTURES, folder / f"{name}.x.npy", str(shape[2]), str(shape[3])], check=True)
        size = ",".join(map(str, shape))
        with open(folder / "export.log", "a") as log:
            subprocess.run([python.parent / "pnnx", f"{name}.onnx", f"inputshape=[{size}]", "fp16=0"], cwd=folder, stdout=log, stderr=log)
        (folder / f"{name}.done").touch()
    return folder


def inputs_of(folder, name):
    if name in OCR:
        return {"x": folder / f"{name}.x.npy"}  # what their file calls it
    return {path.name.split(".")[-2]: path for path in sorted(folder.glob(f"{name}.x*.npy"))}


def model_for(peer, folder, name, python):
    """The file that the runtime takes, or the reason why there is none."""
    onnx = folder / f"{name}.onnx"
    if peer == "ncnn":
        path = folder / f"{name}.ncnn.param"
        return (path, None) if path.exists() else (None, "pnnx made no ncnn model")
    if peer == "torch":
        path = folder / f"{name}.pt"
        return (path, None) if path.exists() else (None, "there is no TorchScript of it")
    if peer == "mnn":
        path = folder / f"{name}.mnn"
        if not path.exists():
            program = python.parent / "mnnconvert"
            if not program.exists():
                return None, "MNN is not installed"
            convert = subprocess.run([program, "-f", "ONNX", "--modelFile", onnx, "--MNNModel", path,
                                      "--bizCode", "bench"], capture_output=True)
            if convert.returncode != 0 or not path.exists():
                return None, "mnnconvert did not take it"
        return path, None
    return onnx, None


class Runtime:
    """A process that holds one network. One that does not answer for five minutes is ended."""

    def __init__(self, command, log, clock):
        self.clock = clock
        self.log = open(log, "w")
        self.child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=self.log, text=True)
        self.about = self.answer()
        self.samples = []

    def answer(self):
        patience = threading.Timer(300, self.child.kill)
        patience.start()
        try:
            while True:
                line = self.child.stdout.readline()
                if not line:
                    raise RuntimeError(self.last_words())
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            patience.cancel()

    def last_words(self):
        lines = pathlib.Path(self.log.name).read_text(errors="replace").strip().splitlines()
        code = self.child.wait()
        return f"{lines[-1][:160]} ({self.log.name})" if lines else f"it ended with code {code}"

    def run(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return self.answer()[self.clock]

    def close(self):
        self.child.stdin.close()
        self.child.wait(timeout=60)
        self.log.close()


def error_of(python, ours, theirs):
    """The largest difference, over the largest output."""
    code = ("import sys, numpy as np\na, b = np.load(sys.argv[1]), np.load(sys.argv[2])\n"
            "print(max(float(np.abs(a[k] - b[k]).max() / max(np.abs(b[k]).max(), 1e-30)) for k in b.files))")
    done = subprocess.run([python, "-c", code, ours, theirs], capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else math.nan


def measure(args, python, folder, timer, name, threads):
    clock = "cpu_ms" if args.cpu_time else "ms"
    flags = ["--threads", threads]
    for key, path in inputs_of(folder, name).items():
        flags += ["--input", f"{key}={path}"]
    outputs = {who: folder / f"{name}.{who}.npz" for who in ("celer", "onnxruntime")}
    runtimes = {"celer": Runtime([timer, folder / f"{name}.onnx", *flags, "--output", outputs["celer"]],
                                  folder / "celer.log", clock)}
    for peer in args.peers:
        model, why = model_for(peer, folder, name, python)
        try:
            if not model:
                raise RuntimeError(why)
            more = ["--output", outputs[peer]] if peer in outputs else []
            runtimes[peer] = Runtime([python, HERE / "graph_peer.py", peer, model, *flags, *more],
                                     folder / f"{peer}.log", clock)
        except (RuntimeError, OSError) as error:
            say(f"{name}: no {peer}: {error}")
    row = {"network": name, "threads": threads, "about": {who: r.about for who, r in runtimes.items()}}
    if "onnxruntime" in runtimes:
        row["error"] = error_of(python, outputs["celer"], outputs["onnxruntime"])
    for round_number in range(args.runs + 2):
        for who, runtime in list(runtimes.items()):
            try:
                ms = runtime.run()
            except (RuntimeError, OSError) as error:
                say(f"{name}: {who} stopped: {error}")
                del runtimes[who]
                continue
            if round_number >= 2:  # the first ones are warm-up
                runtime.samples.append(ms)
            time.sleep(0.05)  # threads that still spin for work fall asleep: ONNX Runtime's do so for over 10 ms
    row["ms"] = {who: statistics.median(r.samples) for who, r in runtimes.items()}
    row["samples"] = {who: r.samples for who, r in runtimes.items()}
    for runtime in runtimes.values():
        runtime.close()
    return row


def geometric_mean(numbers):
    numbers = list(numbers)
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else math.nan


def print_table(args, rows):
    columns = ["celer"] + list(args.peers)
    print(f"{'network':<20}{'threads':>8}" + "".join(f"{who:>13}" for who in columns) + f"{'/ort':>8}{'/best':>8}{'error':>10}")
    for row in rows:
        ms = row["ms"]
        line = f"{row['network']:<20}{row['threads']:>8}"
        for who in columns:
            line += f"{ms[who]:>13.2f}" if who in ms else f"{'-':>13}"
        others = [value for who, value in ms.items() if who != "celer"]
        row["to_ort"] = ms["onnxruntime"] / ms["celer"] if "onnxruntime" in ms else math.nan
        row["to_best"] = min(others) / ms["celer"] if others else math.nan
        print(line + f"{row['to_ort']:>8.2f}{row['to_best']:>8.2f}{row.get('error', math.nan):>10.1e}")
    for threads in args.threads:
        some = [row for row in rows if row["threads"] == threads]
        print(f"{threads} thread{'s' if threads > 1 else ''}: geometric mean "
              f"{geometric_mean(row['to_ort'] for row in some if not math.isnan(row['to_ort'])):.2f} x ONNX Runtime, "
              f"{geometric_mean(row['to_best'] for row in some if not math.isnan(row['to_best'])):.2f} x the best peer")
    print(f"{'CPU time in ' if args.cpu_time else ''}ms, medians; ratios above 1: celer is faster; error: the largest difference to ONNX Runtime over the largest output")
    for row in rows:
        if row["network"] == "ppocrv4_rec":
            firsts = ", ".join(f"{who} {about['first_ms']:.0f} ms" for who, about in row["about"].items())
            print(f"ppocrv4_rec, {row['threads']} threads, load and first run: {firsts}")
        if row["network"] == "resnet50":
            about = row["about"]["celer"]
            print(f"resnet50, {row['threads']} threads, activations: {about['arena_bytes'] / 1e6:.1f} MB, of which "
                  f"{about['live_bytes'] / 1e6:.1f} MB live at once ({about['naive_bytes'] / 1e6:.1f} MB without sharing)")


def main():
    args = parse()
    args.cache.mkdir(parents=True, exist_ok=True)
    build = args.celer.resolve().parent
    if subprocess.run(["cmake", "--build", build, "--target", "celer_graph_timer"], stdout=subprocess.DEVNULL).returncode != 0:
        stop(f"celer_graph_timer does not build in {build}")
    python = environment(args)
    folder = make_networks(args, python)
    work = [(name, threads) for name in args.only or NETWORKS for threads in args.threads]
    rows, begin = [], time.monotonic()
    for name, threads in work:
        rows.append(measure(args, python, folder, build / "bench/celer_graph_timer", name, threads))
        took = time.monotonic() - begin
        left = took / len(rows) * (len(work) - len(rows))
        say(f"{len(rows)} of {len(work)}, {took:.0f} s, about {left:.0f} s left: {name}, {threads} threads: "
            + ", ".join(f"{who} {ms:.2f} ms" for who, ms in rows[-1]["ms"].items()))
    print_table(args, rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
        say(f"wrote {args.json}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
