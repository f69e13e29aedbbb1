#!/usr/bin/env python3
"""celer beside llama.cpp: the same files, the same cores, runs that alternate; medians and their ratio.

  make bench-peers                                           everything: about a quarter of an hour once llama.cpp is built
  make bench-peers ARGS="--only decode-q8_0 --runs 3"        one row in about a minute
  make bench-peers ARGS="--graphs"                           networks instead: bench_graphs.py
  make bench-peers ARGS="--servers"                          servers instead: bench_server.py; also --hold
  make bench-peers ARGS="--gpu"                              vLLM, SGLang and TensorRT-LLM on an H200: gpu_estimates.py
  python3 bench/peers/bench_peers.py --celer build/celer --list

llama.cpp comes from PyPI's llama-cpp-python as source, compiled for this very CPU and kept in the cache folder; its own
fastest settings are used: all cores, memory-mapped weights, repacking, batches of 512, a lasting thread pool, and flash
attention on or off, whichever was faster in this run. bench/peers/llama_cpp_bench.cc calls its C API without an interpreter
in between. The limit is that of `celer bench`: weights and KV read once at the measured bandwidth, or the arithmetic at the
measured peak, whichever is slower.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "0.3.36"  # of llama-cpp-python; a new one gets a folder of its own in the cache
PRESET = "tinyllama-1.1b"
TEXT = ("The quick brown fox jumps over the lazy dog while seven wizards quietly boil potions under the stone "
        "bridge, and nobody in the village knows why the river sings")  # 32 tokens of SmolLM2's vocabulary


def decode(weights, batch=1, tokens=48):
    return {"model": weights, "phase": "decode", "depth": 0, "batch": batch, "tokens": tokens}


def prefill(weights, prompt=256, **more):
    return {"model": weights, "phase": "prefill", "prompt": prompt, "batch": 1, **more}


def requests(model, batch, prompt, tokens):
    return {"model": model, "phase": "requests", "prompt": prompt, "batch": batch, "tokens": tokens}


# Models are the weights of a synthetic file, or a name that `celer pull` knows.
ROWS = {
    "decode-q8_0": ("decode Q8_0, 1.1B", decode("q8_0")),
    "decode-q4_0": ("decode Q4_0, 1.1B", decode("q4_0")),
    "decode-q4_k": ("decode Q4_K, 1.1B", decode("q4_k")),
    "decode-q6_k": ("decode Q6_K, 1.1B", decode("q6_k")),
    "prefill-q8_0": ("prefill 256 Q8_0, 1.1B", prefill("q8_0")),
    "prefill-q4_0": ("prefill 256 Q4_0, 1.1B", prefill("q4_0")),
    "prefill-q4_k": ("prefill 256 Q4_K, 1.1B", prefill("q4_k")),
    "prefill-q6_k": ("prefill 256 Q6_K, 1.1B", prefill("q6_k")),
    # llama.cpp takes minutes for this one: it runs once, cold, and celer as often as in the other rows.
    "prefill-bf16": ("prefill 256 BF16, 1.1B", prefill("bf16", peer_once=True)),
    "batch8-q8_0": ("decode 8 sequences Q8_0, 1.1B", decode("q8_0", batch=8, tokens=16)),
    "smollm2-decode": ("decode SmolLM2-135M Q4_1", decode("smollm2", tokens=128)),
    "smollm2-decode16": ("decode 16 sequences SmolLM2", decode("smollm2", batch=16, tokens=64)),
    "smollm2-requests16": ("16 requests at once, 128 in, 64 out, SmolLM2", requests("smollm2", 16, 128, 64)),
    "smollm2-start": ("start to first token, SmolLM2", {"model": "smollm2", "phase": "start"}),
}


def say(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def stop(text):
    sys.exit(f"bench-peers: {text}")


def run(command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        stop(f"{' '.join(map(str, command))}\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def run_long(command, log, what, env=None):
    """Says every ten seconds that it is still at it; the output goes to a file."""
    begin = time.monotonic()
    with open(log, "w") as file:
        child = subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, env=env)
        while True:
            try:
                code = child.wait(timeout=10)
                break
            except subprocess.TimeoutExpired:
                say(f"{what}: {time.monotonic() - begin:.0f} s so far (log: {log})")
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        stop(f"{what} failed; the end of {log}:\n{tail}")
    return time.monotonic() - begin


def peer_python(args):
    """A Python that has llama-cpp-python, compiled from source here unless one is given."""
    if args.peer_python:
        return pathlib.Path(args.peer_python)
    folder = args.cache / f"llama-cpp-python-{VERSION}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    say(f"building llama.cpp from llama-cpp-python {VERSION} into {folder}: once, several minutes")
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder])
    # GGML_NATIVE compiles for this CPU's instruction sets, as its own CMake would by default.
    env = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release -DLLAVA_BUILD=OFF",
           "CMAKE_BUILD_PARALLEL_LEVEL": str(args.threads)}
    seconds = run_long([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "-v", "--no-binary",
                        "llama-cpp-python", f"llama-cpp-python=={VERSION}"],
                       args.cache / f"llama-cpp-python-{VERSION}.log", "building llama.cpp", env)
    (folder / "complete").write_text("")
    say(f"built in {seconds:.0f} s")
    return python


def peer_program(args):
    """llama_cpp_bench, compiled against that Python's library."""
    python = peer_python(args)
    where = run([python, "-c", "import llama_cpp, os; print(os.path.dirname(llama_cpp.__file__)); "
                 "print(llama_cpp.__version__)"]).split()
    package, version = pathlib.Path(where[0]), where[1]
    include, lib = package.parent / "include", package / "lib"
    for needed in (include / "llama.h", lib / "libllama.so"):
        if not needed.exists():
            stop(f"{needed} is missing: llama-cpp-python {version} was not installed from source")
    program = args.cache / f"llama_cpp_bench-{version}"
    source = HERE / "llama_cpp_bench.cc"
    stamp = f"{source.read_text()}{lib}"
    stamp_file = program.with_name(program.name + ".stamp")
    if not (program.exists() and stamp_file.exists() and stamp_file.read_text() == stamp):
        run([os.environ.get("CXX", "c++"), "-std=c++20", "-O3", source, f"-I{include}", f"-L{lib}", "-lllama", "-lggml",
             "-lggml-base", "-lggml-cpu", f"-Wl,-rpath,{lib}", "-o", program])
        stamp_file.write_text(stamp)
    return program, version


def model_file(args, name):
    if name == "smollm2":
        return pathlib.Path(run([args.celer, "pull", name]).strip().splitlines()[-1])
    path = args.cache / f"{PRESET}-{name}.gguf"
    if not path.exists():
        say(f"writing {path}")
        run([args.celer, "synth", PRESET, "--weights", name, "-o", path])
    return path


def first_byte_seconds(command):
    """From the start of the process until it says something. It then runs to its end, so that it cannot disturb the next."""
    begin = time.perf_counter()
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = child.stdout.read(1)
    seconds = time.perf_counter() - begin
    _, error = child.communicate()
    if child.returncode != 0 or not first:
        stop(f"{' '.join(map(str, command))}\n{error.decode(errors='replace').strip()}")
    return seconds


class Row:
    """One line of the table: what was measured on both sides, sample by sample."""

    def __init__(self, args, program, key):
        self.args, self.program, self.key = args, program, key
        self.title, self.work = ROWS[key]
        self.model = model_file(args, self.work["model"])
        self.celer, self.peer = [], {}  # seconds per repetition; the peer's by setting of flash attention
        self.tokens = self.limit_s = None
        self.bound_by, self.buffers, self.bench = None, [], None

    def run_celer(self):
        work, args = self.work, self.args
        if work["phase"] == "start":
            self.celer.append(first_byte_seconds([args.celer, "run", self.model, TEXT, "--raw", "-n", "1", "--temperature",
                                                  "0", "--threads", args.threads, "-q"]))
            return
        if work["phase"] == "requests":
            return self.run_requests()
        what = (["--prompt", work["prompt"], "--tokens", 0] if work["phase"] == "prefill" else
                ["--prompt", 0, "--depth", work["depth"], "--tokens", work["tokens"]])
        out = json.loads(run([args.celer, "bench", self.model, *what, "--batch", work["batch"], "--repeat", args.repeat,
                              "--threads", args.threads, "--json"]))
        result = out["results"][0]
        self.celer += result["seconds"]
        self.tokens, self.limit_s, self.bound_by = result["tokens"], result["limit_s"], result["bound_by"]
        self.bench = out

    def run_requests(self):
        """All come at once; from the first submission to the last token."""
        work, args = self.work, self.args
        for _ in range(args.repeat):
            out = json.loads(run([args.celer, "bench", self.model, "--serve-poisson", "1e9", "--requests", work["batch"],
                                  "--prompt-tokens", work["prompt"], "--output-tokens", work["tokens"], "--threads",
                                  args.threads, "--device", "cpu", "--json"]))
            result = out["result"]
            self.celer.append(result["seconds"])
            self.tokens, self.limit_s, self.bound_by = result["output_tokens"], result["limit_s"], "mixed"

    def run_peer(self, flash):
        work, args = self.work, self.args
        head = [self.program, self.model, args.threads, flash]
        samples = self.peer.setdefault(flash, [])
        if work["phase"] == "start":
            samples.append(first_byte_seconds([*head, "first", TEXT]))
            return
        once = work.get("peer_once", False)
        repeat, warmup = (1, 0) if once else (args.repeat, 1)
        what = {"prefill": ["prefill", work.get("prompt"), work["batch"]],
                "requests": ["requests", work.get("prompt"), work["batch"], work.get("tokens")],
                "decode": ["decode", work.get("depth"), work["batch"], work.get("tokens")]}[work["phase"]]
        out = json.loads(run([*head, *what, repeat, warmup]))
        samples += out["seconds"]
        self.buffers = [" ".join(line.split()) for line in out["buffers"]]
        if self.tokens is not None and out["tokens"] != self.tokens:
            stop(f"{self.key}: celer counted {self.tokens} tokens, llama.cpp {out['tokens']}")

    def measure(self):
        for i in range(self.args.runs):
            say(f"{self.key}: run {i + 1} of {self.args.runs}")
            self.run_celer()
            if self.work.get("peer_once"):
                if i == 0:
                    self.run_peer("auto")
            else:
                # Who comes first after celer changes, so that neither setting always has the warmer machine.
                for flash in (("0", "1") if i % 2 == 0 else ("1", "0")):
                    self.run_peer(flash)

    def summary(self):
        celer = statistics.median(self.celer)
        flash = min(self.peer, key=lambda setting: statistics.median(self.peer[setting]))
        peer = statistics.median(self.peer[flash])
        out = {"row": self.key, "work": self.title, "model": str(self.model), "threads": self.args.threads,
               "celer_s": self.celer, "llama_cpp_s": self.peer, "flash_attention": flash,
               "celer_median_s": celer, "llama_cpp_median_s": peer, "ratio": peer / celer}
        if self.tokens is not None:
            out |= {"tokens": self.tokens, "celer_tokens_per_s": self.tokens / celer,
                    "llama_cpp_tokens_per_s": self.tokens / peer, "limit_tokens_per_s": self.tokens / self.limit_s,
                    "celer_share": self.limit_s / celer, "llama_cpp_share": self.limit_s / peer, "bound_by": self.bound_by,
                    "llama_cpp_buffers": self.buffers}
        return out


def spread(samples):
    return f"{(max(samples) - min(samples)) / statistics.median(samples) * 50:.0f} %"


def print_table(rows):
    header = ["work", "celer", "+-", "llama.cpp", "+-", "ratio", "limit", "share of it", "bound by"]
    lines = []
    for row in rows:
        samples = row["celer_s"], row["llama_cpp_s"][row["flash_attention"]]
        if "tokens" in row:
            lines.append([row["work"], f"{row['celer_tokens_per_s']:.1f} tok/s", spread(samples[0]),
                          f"{row['llama_cpp_tokens_per_s']:.1f} tok/s", spread(samples[1]), f"{row['ratio']:.2f} x",
                          f"{row['limit_tokens_per_s']:.1f} tok/s", f"{row['celer_share']:.2f}", row["bound_by"]])
        else:
            lines.append([row["work"], f"{row['celer_median_s']:.3f} s", spread(samples[0]),
                          f"{row['llama_cpp_median_s']:.3f} s", spread(samples[1]), f"{row['ratio']:.2f} x", "-", "-", "-"])
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    for line in [header, *lines]:
        cells = [text.ljust(width) if i in (0, len(header) - 1) else text.rjust(width)
                 for i, (text, width) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def common_flags(parser):
    """What bench_server.py takes, too."""
    cache = os.environ.get("CELER_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or
                                                          pathlib.Path.home() / ".cache") / "celer"
    parser.add_argument("--celer", default="build/celer", type=pathlib.Path, help="the program (default build/celer)")
    parser.add_argument("--runs", type=int, default=5, help="processes of each side, in turns (default 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both (default: all usable cores)")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(cache) / "peers",
                        help="where llama.cpp and the synthetic models are kept (about 6 GB for all rows)")
    parser.add_argument("--peer-python", default=os.environ.get("CELER_PEER_PYTHON"),
                        help="a Python with llama-cpp-python installed from source, instead of building it")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write every sample there")


def prepare(args):
    if not args.celer.exists():
        stop(f"{args.celer} is missing; run make build, or give --celer")
    args.celer = args.celer.resolve()
    args.cache.mkdir(parents=True, exist_ok=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_flags(parser)
    parser.add_argument("--only", nargs="+", metavar="ROW", help="measure these rows (see --list)")
    parser.add_argument("--repeat", type=int, default=2, help="repetitions in each process after one to warm up (default 2)")
    parser.add_argument("--list", action="store_true", help="name the rows")
    args = parser.parse_args()
    for name in args.only or []:
        if name not in ROWS:
            parser.error(f"no row '{name}'; there are {', '.join(ROWS)}")
    if min(args.runs, args.repeat, args.threads) < 1:
        parser.error("--runs, --repeat and --threads must be at least 1")
    return args


def main():
    for flag, script in (("--graphs", "bench_graphs.py"), ("--gpu", "gpu_estimates.py")):  # peers of their own
        if flag in sys.argv:
            rest = [word for word in sys.argv[1:] if word != flag]
            sys.exit(subprocess.run([sys.executable, HERE / script, *rest]).returncode)
    if "--servers" in sys.argv or "--hold" in sys.argv:
        sys.exit(subprocess.run([sys.executable, HERE / "bench_server.py", *sys.argv[1:]]).returncode)
    args = parse()
    if args.list:
        for key, (title, _) in ROWS.items():
            print(f"{key:<20}{title}")
        return
    prepare(args)
    program, version = peer_program(args)
    rows, machine = [], None
    for key in args.only or ROWS:
        row = Row(args, program, key)
        row.measure()
        rows.append(row.summary())
        machine = row.bench["machine"] if row.bench else machine
    print(f"celer and llama.cpp (llama-cpp-python {version}), {args.threads} threads, {args.runs} runs each in turns, medians; "
          "+- is half the spread")
    print_table(rows)
    if args.json:
        args.json.write_text(json.dumps({"llama_cpp_python": version, "threads": args.threads, "machine": machine,
                                         "rows": rows}, indent=2) + "\n")
        say(f"wrote {args.json}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
