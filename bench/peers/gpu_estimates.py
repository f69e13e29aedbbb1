#!/usr/bin/env python3
"""What vLLM, SGLang and TensorRT-LLM reach on one H200, by kernel measurements that NVIDIA publishes; needs no GPU.

  make bench-peers ARGS="--gpu"                                    print the table: two minutes on two cores, once installed
  make bench-peers ARGS="--gpu --only llama-3.1-8b/bf16"           a part of it
  make bench-peers ARGS="--gpu --write"                            write it to src/limits/peer_speeds.json, too

PyPI's aisimulate adds up, operator by operator, times that were measured with each engine's own kernels. Its command is

  aiconfigurator cli estimate --system h200_sxm --backend vllm|sglang|trtllm --tp-size 1 --model-path MODEL
      --estimate-mode static_gen|static_ctx --isl PROMPT --osl 32 --batch-size N [--gemm-quant-mode fp8]

where static_gen is decoding of N sequences after PROMPT tokens each, and static_ctx one prompt. It runs in a virtual
environment of its own in the cache folder (1.5 GB, made the first time). The file that --write makes is compiled into celer:
celer bench --html and celer_cuda_bench show these figures beside their own, also on machines that cannot install anything.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE.parents[1] / "src/limits/peer_speeds.json"
# PyPI has 0.13.0 itself only as a placeholder that fetches the package from elsewhere; this one is a wheel.
VERSION = "0.13.0.dev202610270000000085"
GPU, SYSTEM = "NVIDIA H200", "h200_sxm"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
TOKENS = 32
# celer's name of the shape, aiconfigurator's, what it wants to know beside that
MODELS = {"llama-3.1-8b": ("meta-llama/Meta-Llama-3.1-8B", []),
          "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", ["--moe-tp-size", "1", "--moe-ep-size", "1"])}


def decode(model, weights, prompt, *batches):
    return [{"model": model, "weights": weights, "phase": "decode", "prompt": prompt, "batch": batch} for batch in batches]


def prefill(model, weights, *prompts):
    return [{"model": model, "weights": weights, "phase": "prefill", "prompt": prompt, "batch": 1} for prompt in prompts]


ROWS = [*decode("llama-3.1-8b", "bf16", 512, 1, 8, 16, 64, 128, 256),
        *decode("llama-3.1-8b", "bf16", 4096, 64),
        *decode("llama-3.1-8b", "fp8", 512, 1, 16, 64, 128, 256),
        *decode("qwen3-30b-a3b", "bf16", 512, 1, 16, 64, 128),
        *prefill("llama-3.1-8b", "bf16", 512, 2048),
        *prefill("llama-3.1-8b", "fp8", 512, 2048)]


def say(text):
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def stop(text):
    sys.exit(f"bench-peers: {text}")


def key(row):
    return f"{row['model']}/{row['weights']}/{row['phase']}-{row['prompt']}x{row['batch']}"


def title(row):
    if row["phase"] == "prefill":
        return f"{row['model']} {row['weights']}, prefill {row['prompt']:,}"
    return f"{row['model']} {row['weights']}, {row['batch']} at {row['prompt']:,}"


def program(args):
    """aiconfigurator, installed the first time."""
    if args.aiconfigurator:
        return args.aiconfigurator
    folder = args.cache / f"aisimulate-{VERSION}"
    found = folder / "bin/aiconfigurator"
    if (folder / "complete").exists():
        return found
    say(f"installing aisimulate {VERSION} into {folder}: once, several minutes")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
                           f"aisimulate=={VERSION}"], capture_output=True, text=True)
    if done.returncode != 0:
        stop(f"aisimulate {VERSION} does not install:\n{done.stderr.strip()}")
    (folder / "complete").write_text("")
    return found


def flags(row, backend):
    path, more = MODELS[row["model"]]
    mode = "static_gen" if row["phase"] == "decode" else "static_ctx"
    quant = [] if row["weights"] == "bf16" else ["--gemm-quant-mode", row["weights"]]
    return ["cli", "estimate", "--system", SYSTEM, "--backend", backend, "--model-path", path, "--estimate-mode", mode, "--isl",
            str(row["prompt"]), "--osl", str(TOKENS), "--batch-size", str(row["batch"]), "--tp-size", "1", *quant, *more]


def number(pattern, text, command):
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        stop(f"no '{pattern}' in what {command} printed:\n{text.strip()}")
    return found.group(1).replace(",", "")


def estimate(args, tool, row, backend):
    """(tokens per second or None where there are no measurements, the engine's version)"""
    command = [str(tool), *flags(row, backend), "--no-color", "--log-level", "ERROR"]
    done = subprocess.run(command, capture_output=True, text=True)
    words = " ".join(command[1:])
    if done.returncode != 0:
        say(f"{key(row)}, {ENGINES[backend]}: no figure: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        return None, None
    version = number(r"Backend: +\S+ \((\S+)\)", done.stdout, words)
    if row["phase"] == "decode":
        return float(number(r"^ *tokens/s: +([\d.,]+)", done.stdout, words)), version
    # What it calls tokens/s there counts the one token that a prompt ends with.
    return 1e3 * row["prompt"] * row["batch"] / float(number(r"TTFT: +([\d.,]+) ms", done.stdout, words)), version


def measure(args, rows):
    tool = program(args)
    versions = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        asked = [(row, backend, pool.submit(estimate, args, tool, row, backend)) for row in rows for backend in ENGINES]
        for row, backend, future in asked:
            speed, version = future.result()
            speeds = row.setdefault("tokens_per_s", {})
            if speed is not None:
                speeds[backend] = round(speed, 1)
                versions[backend] = version
            if backend == list(ENGINES)[-1]:
                say(f"{key(row)} done")
    return {"source": f"aisimulate {VERSION}", "command": "aiconfigurator " + " ".join(
                ["cli estimate --system", SYSTEM, "--backend ENGINE --model-path MODEL --estimate-mode static_gen|static_ctx",
                 f"--isl PROMPT --osl {TOKENS} --batch-size BATCH --tp-size 1 [--gemm-quant-mode fp8]",
                 "[--moe-tp-size 1 --moe-ep-size 1]"]),
            "written_by": "bench/peers/gpu_estimates.py --write", "gpu": GPU, "tokens": TOKENS,
            "engines": {name: f"{ENGINES[name]} {versions[name]}" for name in ENGINES if name in versions}, "rows": rows}


def print_table(data):
    print(f"one {data['gpu']}, tokens per second, by {data['source']}; {', '.join(data['engines'].values())}")
    print(f"{'work':<40}" + "".join(f"{name:>14}" for name in ENGINES.values()) + f"{'best':>14}")
    for row in data["rows"]:
        speeds = row["tokens_per_s"]
        cells = [f"{speeds[name]:,.0f}" if name in speeds else "-" for name in ENGINES]
        best = max(speeds, key=speeds.get) if speeds else None
        print(f"{title(row):<40}" + "".join(f"{cell:>14}" for cell in cells) + f"{ENGINES[best] if best else '-':>14}")


def dump(data):
    """JSON with one line a row."""
    head = {name: value for name, value in data.items() if name != "rows"}
    rows = ",\n".join("    " + json.dumps(row) for row in data["rows"])
    return json.dumps(head, indent=2)[:-2] + ',\n  "rows": [\n' + rows + "\n  ]\n}\n"


def main():
    cache = os.environ.get("CELER_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or
                                                          pathlib.Path.home() / ".cache") / "celer"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--celer", help=argparse.SUPPRESS)  # the other peers' scripts need it; this one runs nothing of celer's
    parser.add_argument("--only", metavar="START", help="rows whose name begins so (see --list)")
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="estimates at a time (default: usable cores)")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(cache) / "peers", help="where aisimulate is kept")
    parser.add_argument("--aiconfigurator", type=pathlib.Path, help=f"that program of aisimulate {VERSION}; none is installed then")
    parser.add_argument("--show", action="store_true", help=f"print {FILE.name} instead of computing it again")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.relative_to(HERE.parents[1])}")
    args = parser.parse_args()
    rows = [row for row in ROWS if key(row).startswith(args.only or "")]
    if not rows:
        parser.error(f"no row begins with '{args.only}'; see --list")
    if args.list:
        print("\n".join(map(key, rows)))
        return
    if args.write and args.only:
        parser.error("--write needs all rows; leave out --only")
    if args.show:
        data = json.loads(FILE.read_text())
        data["rows"] = [row for row in data["rows"] if key(row).startswith(args.only or "")]
    else:
        data = measure(args, rows)
    print_table(data)
    if args.write:
        FILE.write_text(dump(data))
        say(f"wrote {FILE}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
