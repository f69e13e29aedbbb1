#!/usr/bin/env python3
"""celer serve under load, beside celer batch and the server of llama-cpp-python: the same requests, in turns.

  python3 bench/peers/server_load.py build-cpu/celer smollm2 [--peer-python PYTHON] [--rounds 3] [--hold 256]

The load comes from `celer bench --server`. Every round runs all sides once; the table has the medians of the ratios of each round,
so that other work on the machine disturbs all sides alike. PYTHON is one with llama-cpp-python[server] installed from source.
`--hold N` then keeps N streams open for at least two minutes. Printed besides: how soon after its start the server has answered with
a first token, and the time on a core of the server's event loop (its first thread) per token.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


class Server:
    def __init__(self, command, port, ready_path):
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        begin = time.perf_counter()
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while ask(port, "GET", ready_path)[0] != 200:
            if self.process.poll() is not None or time.perf_counter() - begin > 300:
                sys.exit(f"{' '.join(map(str, command))} did not start")
            time.sleep(0.002)
        self.healthy_s = time.perf_counter() - begin
        status, answer = ask(port, "POST", "/v1/completions", {"prompt": "The harbour of the old town", "max_tokens": 1})
        if status != 200:
            sys.exit(answer)
        self.ready_s = time.perf_counter() - begin

    def loop_seconds(self):
        """On a core, of the first thread."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat").read_text().split()[0]) * 1e-9

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def load(args, server, *more):
    report = json.loads(run([args.celer, "bench", "--server", server.url, "--prompt-tokens", args.prompt, "--output-tokens",
                             args.output, "--json", *more]))
    result = report["result"]
    if result["failed"]:
        print(f"{server.url}: {result['failed']} of {result['requests']} requests failed: {result['errors']}", flush=True)
    return result


def start_celer(args):
    port = free_port()
    return Server([args.celer, "serve", args.model, "--port", port, "--device", "cpu", "--threads", args.threads, "-q"], port,
                  "/health")


def start_peer(args):
    port = free_port()
    return Server([args.peer_python, "-m", "llama_cpp.server", "--model", args.gguf, "--port", port, "--n_ctx", 4096,
                   "--n_threads", args.threads, "--n_threads_batch", args.threads], port, "/v1/models")


def batch_speed(args, requests, folder):
    """How fast `celer batch` answers the requests, without loading the model."""
    summary = json.loads(run([args.celer, "batch", args.model, requests, "-o", folder / "answers.jsonl", "--device", "cpu",
                              "--threads", args.threads, "--window", args.concurrency, "--restart", "--json"]))
    return summary["completion_tokens_per_s"]


def compare(args, folder):
    requests = folder / "requests.jsonl"
    closed = ["--concurrency", args.concurrency, "--requests", args.requests]
    batch, peer, rows = [], [], []
    for i in range(args.rounds):
        server = start_celer(args)
        before = server.loop_seconds()
        result = load(args, server, *closed, "--save-requests", requests)
        loop_us = (server.loop_seconds() - before) / result["output_tokens"] * 1e6
        server.stop()
        rows.append((result["output_tokens_per_s"], loop_us, server.healthy_s, server.ready_s, result["client_cpu_s"]))
        in_batch = batch_speed(args, requests, folder)
        batch.append(result["output_tokens_per_s"] / in_batch)
        print(f"round {i + 1}: server {result['output_tokens_per_s']:.0f} tok/s, batch {in_batch:.0f} tok/s, loop "
              f"{loop_us:.1f} us a token, health after {server.healthy_s:.3f} s, first token after {server.ready_s:.3f} s, client "
              f"{result['client_cpu_s']:.2f} s of CPU in {result['seconds']:.1f} s", flush=True)
        if args.peer_python:
            other = start_peer(args)
            # It knows neither ignore_eos nor usage in streams: the end is made impossible, and every piece is a token.
            there = load(args, other, *closed, "--body", json.dumps({"ignore_eos": None, "logit_bias": {"0": -100, "2": -100}}))
            other.stop()
            peer.append(result["requests_per_s"] / there["requests_per_s"])
            print(f"         llama-cpp-python {there['requests_per_s']:.2f} requests/s and {there['output_tokens']} tokens, celer "
                  f"{result['requests_per_s']:.2f} requests/s and {result['output_tokens']} tokens", flush=True)
    print(f"server / batch: {statistics.median(batch):.3f} ({min(batch):.3f} to {max(batch):.3f})")
    if peer:
        print(f"server / llama-cpp-python's: {statistics.median(peer):.2f} ({min(peer):.2f} to {max(peer):.2f})")
    print(f"loop: {statistics.median(row[1] for row in rows):.1f} us a token; first token {min(row[3] for row in rows):.3f} s after the start")


def hold(args):
    """As many streams as asked for, none of which ends before two minutes are over."""
    server = start_celer(args)
    probe = load(args, server, "--concurrency", args.hold, "--requests", args.hold)
    tokens = int(130 * probe["output_tokens_per_s"] / args.hold) + args.output
    begin = time.perf_counter()
    args.output = tokens
    result = load(args, server, "--concurrency", args.hold, "--requests", args.hold, "--timeout", 3600)
    server.stop()
    print(f"{args.hold} streams of {tokens} tokens open for {time.perf_counter() - begin:.0f} s: {result['failed']} errors, most "
          f"open {result['most_open']}, {result['output_tokens_per_s']:.0f} tok/s, gaps p50 {result['inter_token_s']['p50'] * 1e3:.0f} "
          f"p99 {result['inter_token_s']['p99'] * 1e3:.0f} ms, client {result['client_cpu_s']:.1f} s of CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("--peer-python", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--hold", type=int, default=0)
    args = parser.parse_args()
    args.gguf = args.model
    if not pathlib.Path(args.model).exists():
        args.gguf = re.sub(r"\s+$", "", run([args.celer, "pull", args.model])).splitlines()[-1]
    with tempfile.TemporaryDirectory(prefix="celer_load_") as folder:
        if args.rounds > 0:
            compare(args, pathlib.Path(folder))
    if args.hold > 0:
        hold(args)


if __name__ == "__main__":
    main()
