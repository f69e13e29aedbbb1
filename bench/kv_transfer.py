#!/usr/bin/env python3
"""When disaggregated prefill pays: the time to fetch a prompt's keys and values from another server beside the time to compute it,
by the prompt's length, between two servers on this machine over loopback.

  python3 bench/kv_transfer.py build/celer MODEL
  python3 bench/kv_transfer.py build/celer MODEL --lengths 256,1024,4096 --runs 5 --threads 2 --flags "--kv int8"
  python3 bench/kv_transfer.py build/celer MODEL --device cuda:0 --lengths 1024,4096,16384,65536

Both servers have the same flags. For each prompt the first one computes it (the time of an answer of one token), the second one fetches it and answers
with one token, and computes another prompt of the same length by itself. Medians. The bandwidth of the fetch gives the length of a link's byte at which both
times are equal: a network of that speed is the slowest on which a fetch saves time.
"""
import argparse
import http.client
import json
import pathlib
import random
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class Server:
    def __init__(self, celer, model, flags):
        self.process = subprocess.Popen([celer, "serve", model, "--port", "0", "--quiet", "--kv-transfer", "127.0.0.1:0", "--kv-transfer-peers",
                                         "127.0.0.1", "--kv-transfer-timeout", "120", *flags], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if match := re.search(r"listening on http://([\d.]+):(\d+)", line):
                self.host, self.port = match[1], int(match[2])
            if line.startswith("ready: "):
                break
        else:
            sys.exit("a server did not start; try its flags with celer serve")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def answer(self, tokens, **more):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=3600)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": tokens, "max_tokens": 1, "temperature": 0, **more}),
                           {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        seconds = time.perf_counter() - begin
        if "error" in answer:
            sys.exit(answer["error"]["message"])
        return seconds, answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer")
    parser.add_argument("model")
    parser.add_argument("--lengths", default="128,512,1024,2048,4000")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--flags", default="", help="for both servers")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    lengths = [int(text) for text in args.lengths.split(",")]
    flags = ["--device", args.device, "--context", str(max(lengths) + 64), *shlex.split(args.flags)]
    if args.threads:
        flags += ["--threads", str(args.threads)]
    servers = [Server(args.celer, args.model, flags) for _ in range(2)]
    a, b = servers
    info = a.get("/server_info")
    each, vocab = info["kv_bytes_per_token"], 1000
    rng = random.Random(1)
    print(f"{info['served_model_name']} on {info['device']}, {info['threads']} threads, {each / 1024:.1f} KiB of KV per token\n")
    print("| prompt | computed | fetched | of it the transfer | quotient | MB | GB/s of the transfer | pays from |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for length in lengths:
        computed, fetched, transfer = [], [], []
        for run in range(args.runs + 1):
            prompt, other = ([rng.randrange(10, vocab) for _ in range(length)] for _ in range(2))
            seconds, answer = a.answer(prompt, kv_transfer_params=PREFILL)
            before = metrics(b)
            took, got = b.answer(prompt, kv_transfer_params=answer["kv_transfer_params"])
            assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == (length - 1) // 16 * 16, got
            alone, _ = b.answer(other)
            if run > 0:  # the first one warms up
                computed += [seconds, alone]
                fetched.append(took)
                transfer.append(metrics(b) - before)
        c, f, t = (statistics.median(values) for values in (computed, fetched, transfer))
        moved = (length - 1) // 16 * 16 * each
        # f - t: what is left to compute, and the request itself.
        pays = moved / max(c - (f - t), 1e-9)
        rows.append({"tokens": length, "computed_s": c, "fetched_s": f, "transfer_s": t, "bytes": moved, "pays_from_bytes_per_s": pays})
        print(f"| {length} | {1e3 * c:.1f} ms | {1e3 * f:.1f} ms | {1e3 * t:.1f} ms | {c / f:.1f} | {moved / 1e6:.1f} | {moved / t / 1e9:.2f} | {pays * 8 / 1e9:.3f} Gbit/s |",
              flush=True)
    if args.json:
        args.json.write_text(json.dumps({"server": info, "rows": rows}, indent=1) + "\n")
    for server in servers:
        server.process.terminate()
    for server in servers:
        server.process.wait()


def metrics(server):
    """Seconds of all fetches so far."""
    connection = http.client.HTTPConnection(server.host, server.port)
    connection.request("GET", "/metrics")
    return float(re.search(r"^celer:nixl_xfer_time_seconds_sum{[^}]*} (\S+)$", connection.getresponse().read().decode(), re.M)[1])


if __name__ == "__main__":
    main()
