#!/usr/bin/env python3
"""What celer plan predicts for this machine beside what celer bench --serve-trace measures on it: throughput, and p50 and p90 of TTFT
and TPOT, of three loads. For an idle machine: it does nothing where the load average is above --most-busy.

usage: against_bench.py CELER [MODEL] [--runs 3] [--most-busy 1.2] [--json FILE]
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

# Name, requests per second as a share of what the machine holds, tokens in and out at random between these.
LOADS = [("light", 0.3, (32, 256), (16, 96)), ("medium", 0.6, (32, 256), (16, 96)), ("long prompts", 0.5, (256, 900), (16, 64))]
FIGURES = ["output_tokens_per_s", "ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90"]


def run(celer, *args):
    done = subprocess.run([celer, *map(str, args), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"celer {args}: {done.stderr}")
    return json.loads(done.stdout)


def write_trace(path, rate, prompts, outputs, count=80, seed=1):
    random.seed(seed)
    now, lines = 0.0, []
    for _ in range(count):
        lines.append(json.dumps({"timestamp": round(1000 * now), "input_length": random.randint(*prompts),
                                 "output_length": random.randint(*outputs)}))
        now += random.expovariate(rate)
    path.write_text("\n".join(lines) + "\n")


def predicted(celer, model, trace):
    row = run(celer, "plan", model, "--load", trace, "--machines", "this", "--count", 1, "--kv", "f16", "--chunk", 512)["rows"][0]
    checked = row["checked"]
    if not checked:
        sys.exit(f"the plan did not simulate this machine: {row['why_not']}")
    return [checked["output_tokens_per_s"], checked["ttft_s"]["p50"], checked["ttft_s"]["p90"], checked["tpot_s"]["p50"],
            checked["tpot_s"]["p90"]]


def measured(celer, model, trace):
    answer = run(celer, "bench", model, "--serve-trace", trace, "--kv", "f16", "--chunk", 512, "--mixed-chunk", 512)
    one = answer["result"]
    ttft, gap = one["ttft_s"], one["per_output_token_s"]
    return [one["output_tokens_per_s"], ttft["p50"], ttft["p90"], gap["p50"], gap["p90"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--most-busy", type=float, default=1.2)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if os.getloadavg()[0] > args.most_busy:
        print(f"skipped: the load average is {os.getloadavg()[0]:.1f}, above {args.most_busy}; figures would be other programs'")
        return 77
    wrong, table = 0, []
    with tempfile.TemporaryDirectory() as folder:
        holds = {}
        for name, share, prompts, outputs in LOADS:
            means = (sum(prompts) // 2, sum(outputs) // 2)
            if means not in holds:
                row = run(args.celer, "plan", args.model, "--prompt", means[0], "--output", means[1], "--machines", "this", "--kv", "f16",
                          "--chunk", 512, "--no-simulation")["rows"][0]
                holds[means] = row["rate_at_most"]
            trace = pathlib.Path(folder) / "trace.jsonl"
            write_trace(trace, share * holds[means], prompts, outputs)
            both = [[statistics.median(values) for values in zip(*(ask(args.celer, args.model, trace) for _ in range(args.runs)))]
                    for ask in (predicted, measured)]
            for figure, plan, bench in zip(FIGURES, *both):
                error = plan / bench - 1
                wrong += abs(error) > args.within
                table.append({"load": name, "figure": figure, "predicted": plan, "measured": bench, "error": error})
                print(f"{name:14} {figure:20} {plan:10.4g} {bench:10.4g} {100 * error:+6.1f} %")
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))
    print(f"{wrong} of {len(table)} figures are off by more than {100 * args.within:.0f} %")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
