#!/usr/bin/env python3
"""What celer plan predicts for this machine beside what celer bench --serve-trace measures on it: throughput, and p50 and p90 of TTFT
and TPOT, of several loads. For an idle machine: it does nothing where the load average is above --most-busy.

usage: against_bench.py CELER [MODEL] [--runs 3] [--most-busy 1.2] [--json FILE]
       against_bench.py CELER random:llama-3.1-8b --gpu h200 --traces conv.csv:0.4 conv.csv:0.7 code.csv:0.6 --seconds 20
"""
import argparse
import csv
import datetime
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
        sys.exit(f"celer {' '.join(map(str, args))}: {done.stderr}")
    return json.loads(done.stdout)


def at_random(prompts, outputs, count, seed=1):
    """Requests that come at random, one a second on average: arrival, tokens in, tokens out."""
    random.seed(seed)
    now, rows = 0.0, []
    for _ in range(count):
        rows.append((now, random.randint(*prompts), random.randint(*outputs)))
        now += random.expovariate(1)
    return rows


def from_azure(path, longest):
    """All requests of Azure's CSV that fit, from the first on."""
    with open(path, newline="") as file:
        rows = [(datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                for row in csv.DictReader(file)]
    return [(at - rows[0][0], prompt, max(1, output)) for at, prompt, output in rows if prompt + output <= longest]


def write_trace(path, rows, rate):
    """The same requests, `rate` a second on average."""
    scale = (len(rows) - 1) / (rows[-1][0] - rows[0][0]) / rate
    path.write_text("".join(json.dumps({"timestamp": round(1000 * at * scale, 3), "input_length": prompt, "output_length": output}) + "\n"
                            for at, prompt, output in rows))


def predicted(args, trace):
    row = run(args.celer, "plan", args.model, "--load", trace, "--machines", "this", "--count", 1, "--kv", "f16", "--chunk", args.chunk)["rows"][0]
    checked = row["checked"]
    if not checked:
        sys.exit(f"the plan did not simulate this machine: {row['why_not']}")
    return [checked["output_tokens_per_s"], checked["ttft_s"]["p50"], checked["ttft_s"]["p90"], checked["tpot_s"]["p50"],
            checked["tpot_s"]["p90"]]


def measured(args, trace):
    one = run(args.celer, "bench", args.model, "--serve-trace", trace, "--kv", "f16", "--chunk", args.chunk, "--mixed-chunk", args.chunk)["result"]
    ttft, gap = one["ttft_s"], one["per_output_token_s"]
    return [one["output_tokens_per_s"], ttft["p50"], ttft["p90"], gap["p50"], gap["p90"]]


def holds(args, rows):
    """Requests of these lengths that the machine takes at all, by estimate."""
    prompt, output = (round(statistics.mean(row[i] for row in rows)) for i in (1, 2))
    model = args.model.removeprefix("random:") if args.gpu else args.model
    weights = ["--weights", "bf16"] if args.gpu else []
    return run(args.celer, "plan", model, "--prompt", prompt, "--output", output, "--machines", args.gpu or "this", "--kv", "f16", "--chunk",
               args.chunk, "--no-simulation", *weights)["rows"][0]["rate_at_most"]


def loads(args):
    """Name, requests, and how many of them a second."""
    if not args.traces:
        for name, share, prompts, outputs in LOADS:
            rows = at_random(prompts, outputs, args.requests)
            yield name, rows, share * holds(args, rows)
        return
    for trace in args.traces:
        path, share = trace.rsplit(":", 1)
        rows = from_azure(path, args.longest)
        rate = float(share) * holds(args, rows)
        yield f"{pathlib.Path(path).stem[-4:]} {share}", rows[:max(100, round(args.seconds * rate))], rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=80, help="of each load at random")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--gpu", default="", help="the name of this machine's GPU in celer plan --list")
    parser.add_argument("--traces", nargs="+", default=[], metavar="CSV:SHARE", help="Azure's, at so much of what the machine takes")
    parser.add_argument("--seconds", type=float, default=20, help="of each trace")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a request of a trace; longer ones are left out")
    parser.add_argument("--most-busy", type=float, default=1.2)
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if os.getloadavg()[0] > args.most_busy:
        print(f"skipped: the load average is {os.getloadavg()[0]:.1f}, above {args.most_busy}; figures would be other programs'")
        return 77
    wrong, table = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, rate in loads(args):
            trace = pathlib.Path(folder) / "trace.jsonl"
            write_trace(trace, rows, rate)
            both = [[statistics.median(values) for values in zip(*(ask(args, trace) for _ in range(args.runs)))]
                    for ask in (predicted, measured)]
            print(f"{name}: {len(rows)} requests, {rate:.3g} a second", flush=True)
            for figure, plan, bench in zip(FIGURES, *both):
                error = plan / bench - 1
                wrong += abs(error) > args.within
                table.append({"load": name, "rate": rate, "figure": figure, "predicted": plan, "measured": bench, "error": error})
                print(f"{name:14} {figure:20} {plan:10.4g} {bench:10.4g} {100 * error:+6.1f} %", flush=True)
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))
    print(f"{wrong} of {len(table)} figures are off by more than {100 * args.within:.0f} %")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
