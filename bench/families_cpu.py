#!/usr/bin/env python3
"""Decode of each family on a CPU beside a Llama with about as many bytes: the share of the limit that each reaches, in one table.

  python3 bench/families_cpu.py build/celer                         every family of the list below; half an hour on an idle machine
  python3 bench/families_cpu.py build/celer --only gemma,qwen3.5    those whose name contains one of these
  python3 bench/families_cpu.py build/celer --json families.json

Models are written by `celer synth` with random weights, q8_0 in GGUF (or bf16 in a folder where llama.cpp knows no such architecture), with the
published widths and so many layers that about a billion weights are read for a token. The Llama is llama-3.2-1b with as many layers as make its bytes
equal. Runs alternate, each model before and behind its Llama; the figure is the median of the quotients.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

BASE = "llama-3.2-1b"
# A preset of `celer limits --list`, and layers for about 1 GB a token in q8_0.
MODELS = [
    ("qwen3-1.7b", 10), ("gemma-2b", 10), ("gemma-2-2b", 8), ("gemma-3-1b", 26), ("gpt-oss-20b", 6), ("qwen3-next-80b-a3b", 14),
    ("qwen3.5-9b", 4), ("qwen3.5-35b-a3b", 6), ("deepseek-v2-lite", 5), ("glm-4-9b", 4), ("glm-4-9b-0414", 4), ("glm-4.5-air", 5),
    ("glm-4.7-flash", 10), ("phi-3-mini", 9), ("phi-4-mini", 6), ("phi-2", 12), ("granite-3.3-2b", 12), ("olmo-2-7b", 4),
    ("olmo-3-7b", 4), ("olmoe-1b-7b", 16), ("ministral-3-8b", 3), ("minimax-m2", 8), ("ernie-4.5-0.3b", 18), ("ernie-4.5-21b-a3b", 12),
    ("hunyuan-a13b", 4), ("smollm3-3b", 11), ("command-r7b", 2), ("starcoder2-3b", 10), ("gpt2-xl", 20), ("opt-1.3b", 20),
    ("pythia-1b", 16), ("gpt-j-6b", 4), ("falcon-7b", 4), ("stablelm-2-1.6b", 14), ("exaone-4.0-1.2b", 24),
]
FOLDERS = ("opt", "gpt-j")  # no architecture in GGUF


def run(*args):
    done = subprocess.run([*map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return done.stdout


def decode(celer, model, tokens):
    """(share of the limit, tokens per second, bytes of a token)"""
    answer = json.loads(run(celer, "bench", model, "--prompt", 0, "--tokens", tokens, "--repeat", 3, "--json"))
    row = next(row for row in answer["results"] if row["phase"] == "decode")
    return row["ratio"], row["tokens_per_s"], row["bytes"] / tokens


def synthesize(celer, preset, layers, folder):
    path = pathlib.Path(folder) / (preset if preset.startswith(FOLDERS) else preset + ".gguf")
    run(celer, "synth", preset, "--layers", layers, "--weights", "bf16" if preset.startswith(FOLDERS) else "q8_0", "-o", path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("--only", help="parts of names, with commas between them")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    wanted = [(name, layers) for name, layers in MODELS if not args.only or any(part in name for part in args.only.split(","))]
    table = []
    print(f"{'model':22} {'MB a token':>10} {'tok/s':>7} {'of limit':>8} {'Llama':>6} {'beside it':>9}", flush=True)
    with tempfile.TemporaryDirectory(prefix="celer_families_") as folder:
        llamas = {layers: synthesize(args.celer, BASE, layers, folder) for layers in (8, 16)}
        sizes = {layers: decode(args.celer, path, 2)[2] for layers, path in llamas.items()}
        for name, layers in wanted:
            path = synthesize(args.celer, name, layers, folder)
            size = decode(args.celer, path, 2)[2]
            llama = llamas[min(sizes, key=lambda one: abs(sizes[one] - size))]
            pairs = [(decode(args.celer, path, args.tokens), decode(args.celer, llama, args.tokens)) for _ in range(args.runs)]
            row = {"model": name, "layers": layers, "bytes": size, "tokens_per_s": statistics.median(own[1] for own, _ in pairs),
                   "of_limit": statistics.median(own[0] for own, _ in pairs), "llama_of_limit": statistics.median(other[0] for _, other in pairs),
                   "beside_llama": statistics.median(own[0] / other[0] for own, other in pairs)}
            table.append(row)
            print(f"{name:22} {size / 1e6:10.0f} {row['tokens_per_s']:7.1f} {row['of_limit']:8.2f} {row['llama_of_limit']:6.2f} "
                  f"{row['beside_llama']:9.2f}", flush=True)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if args.json:
        args.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
