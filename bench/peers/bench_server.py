#!/usr/bin/env python3
"""celer serve beside other servers: the same file, the same requests, the same client (`celer bench --server`), in turns.

  make bench-peers ARGS="--servers"                                   celer, celer batch, llama-cpp-python
  make bench-peers ARGS="--servers --threads 1 --cpu-time"            on a busy machine: CPU time of one core instead of the clock
  make bench-peers ARGS="--servers --concurrency 1 16"
  make bench-peers ARGS="--hold 256"                                  streams that stay open for --hold-seconds, celer alone

Every run has a server of its own, so no prompt is known before. The peer is the server of llama-cpp-python[server], which
answers one request after another. `celer batch` gets the same requests from a file.
"""
import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import bench_peers
from bench_peers import VERSION, run, say, stop

TICK = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def cpu_seconds(pid):
    """User and system time of a process, with the threads that have ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def thread_seconds(pid):
    """CPU time of the process's first thread: in celer serve that is the event loop."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class Server:
    """A server in a process of its own, asked until it answers."""

    def __init__(self, command, path, log):
        begin = time.monotonic()
        self.port = command[command.index("--port") + 1]
        with open(log, "w") as file:
            self.process = subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT)
        while True:
            if self.process.poll() is not None:
                stop(f"{command[0]} ended; its log: {log}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5)
                break
            if time.monotonic() > begin + 300:
                stop(f"{command[0]} was not ready after 300 s; its log: {log}")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - begin
        ask = json.dumps({"prompt": "the", "max_tokens": 1}).encode()
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", ask,
                                                      {"Content-Type": "application/json"}), timeout=300).read()
        self.first_token_s = time.monotonic() - begin

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


class Celer:
    name = "celer serve"
    body = {}

    def __init__(self, args, model):
        self.args, self.model = args, model

    def start(self):
        return Server([self.args.celer, "serve", self.model, "--port", free_port(), "--device", self.args.device, "--threads",
                       self.args.threads, "--context", self.args.context, "-q"], "/health", self.args.cache / "celer-serve.log")


class LlamaPython:
    name = "llama-cpp-python"
    # It does not know ignore_eos. A bias would be computed in Python for each token, so its answers may end early instead.
    body = {"ignore_eos": None}

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.python = bench_peers.peer_python(args)
        if subprocess.run([self.python, "-c", "import llama_cpp.server.app"], capture_output=True).returncode != 0:
            run([self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"llama-cpp-python[server]=={VERSION}"])

    def start(self):
        threads = self.args.threads
        # Without interrupt_requests=false it gives up a request as soon as the next one comes.
        return Server([self.python, "-m", "llama_cpp.server", "--model", self.model, "--port", free_port(), "--n_ctx",
                       self.args.context, "--n_threads", threads, "--n_threads_batch", threads, "--interrupt_requests", "false"],
                      "/v1/models", self.args.cache / "llama-cpp-python-server.log")


def load(args, peer, streams, save=None):
    """One load on a fresh server: what the client saw, and what the server took."""
    server = peer.start()
    try:
        def client(requests, prompt, output, *more):
            return json.loads(run([args.celer, "bench", "--server", f"http://127.0.0.1:{server.port}", "--concurrency", streams, "--requests",
                                   requests, "--prompt-tokens", prompt, "--output-tokens", output, "--timeout", 3600, "--json", "--body",
                                   json.dumps(peer.body), *more]))["result"]
        client(1, 1, 1)  # warms up; and the prompts by which the client counts tokens are known then
        before, loop = cpu_seconds(server.process.pid), thread_seconds(server.process.pid)
        out = client(args.requests, args.prompt_tokens, args.output_tokens, *(["--save-requests", save] if save else []))
        out["server_cpu_s"] = cpu_seconds(server.process.pid) - before
        out["loop_cpu_s"] = thread_seconds(server.process.pid) - loop
        out |= {"ready_s": server.ready_s, "first_token_s": server.first_token_s}
    finally:
        server.stop()
    if out["failed"]:
        say(f"{peer.name}: {out['failed']} of {out['requests']} failed: {out['errors'][0]['kind']}: {out['errors'][0]['first']}")
    return out


def batch(args, model, requests, streams):
    """`celer batch` on the same requests, as many at once; loading is not counted, as it is not for a server."""
    with tempfile.TemporaryDirectory() as folder:
        def once(file):
            command = [args.celer, "batch", model, file, "-o", f"{folder}/out-{file.stem}.jsonl", "--device", args.device, "--threads",
                       args.threads, "--context", args.context, "--window", streams]
            begin, before = time.monotonic(), os.times()
            run(command)
            after = os.times()
            return (time.monotonic() - begin,
                    after.children_user + after.children_system - before.children_user - before.children_system)
        lines = requests.read_text().splitlines()
        first = json.loads(lines[0])
        first["body"] |= {"max_tokens": 1, "prompt": "the"}
        short = pathlib.Path(folder) / "short.jsonl"
        short.write_text(json.dumps(first) + "\n")
        start, whole = once(short), once(requests)
        answers = [json.loads(line) for line in pathlib.Path(f"{folder}/out-{requests.stem}.jsonl").read_text().splitlines()]
    tokens = sum(one["response"]["body"]["usage"]["completion_tokens"] for one in answers)
    return {"seconds": whole[0] - start[0], "server_cpu_s": whole[1] - start[1], "output_tokens": tokens, "failed": len(lines) - len(answers),
            "client_cpu_s": 0.0}


def speed(args, out):
    """Tokens of answers per second, by the clock or by the CPU time of server and client."""
    return out["output_tokens"] / (out["server_cpu_s"] + out["client_cpu_s"] if args.cpu_time else out["seconds"])


def compare(args, model, streams):
    celer = Celer(args, model)
    peers = [celer] if args.no_peer else [celer, LlamaPython(args, model)]
    samples = {peer.name: [] for peer in peers} | {"celer batch": []}
    for i in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "requests.jsonl"
            for peer in peers:
                say(f"{streams} at once, run {i + 1} of {args.runs}: {peer.name}")
                samples[peer.name].append(load(args, peer, streams, saved if peer is celer else None))
            say(f"{streams} at once, run {i + 1} of {args.runs}: celer batch")
            samples["celer batch"].append(batch(args, model, saved, streams))
    middle = {name: statistics.median(speed(args, out) for out in runs) for name, runs in samples.items()}
    print(f"\n{streams} at once, {args.requests} requests of {args.prompt_tokens} tokens in and {args.output_tokens} out")
    print(f"{'':<18}{'tok/s':>9}{'+-':>6}{'celer is':>10}{'TTFT p50':>10}{'gap p50':>9}{'ready':>8}{'tokens':>8}{'failed':>8}")
    for name, runs in samples.items():
        speeds = [speed(args, out) for out in runs]
        spread = (max(speeds) - min(speeds)) / middle[name] * 50
        seen = ["-", "-", "-"]
        if "ttft_s" in runs[0]:
            seen = [f"{statistics.median(out[key]['p50'] for out in runs) * 1e3:.0f} ms" for key in ("ttft_s", "inter_token_s")]
            seen.append(f"{statistics.median(out['first_token_s'] for out in runs):.2f} s")
        print(f"{name:<18}{middle[name]:>9.1f}{spread:>4.0f} %{middle[celer.name] / middle[name]:>8.2f} x{seen[0]:>10}{seen[1]:>9}{seen[2]:>8}"
              f"{runs[0]['output_tokens']:>8}{sum(out['failed'] for out in runs):>8}")
    loop = statistics.median(out["loop_cpu_s"] / out["output_tokens"] for out in samples[celer.name])
    more = statistics.median(ours["server_cpu_s"] / ours["output_tokens"] - theirs["server_cpu_s"] / theirs["output_tokens"]
                             for ours, theirs in zip(samples[celer.name], samples["celer batch"]))
    print("ready: seconds from the start of the process to the first token of a first request")
    print(f"celer serve's event loop took {loop * 1e6:.1f} us of CPU time for each token of an answer; the whole process "
          f"{more * 1e6:+.0f} us beside celer batch")
    return {"streams": streams, "tokens_per_s": middle, "loop_s_per_token": loop, "process_s_per_token_beside_batch": more,
            "samples": samples}


def hold(args, model):
    """Streams that are all open at once, each for at least --hold-seconds."""
    args.context = max(args.context, 1024)
    server = Celer(args, model).start()
    try:
        pid = server.process.pid
        command = [args.celer, "bench", "--server", f"http://127.0.0.1:{server.port}", "--concurrency", args.hold, "--requests", args.hold,
                   "--prompt-tokens", 1, "--output-tokens", args.context - 32, "--timeout", 36000, "--json",
                   # The server's deadline ends them, with what there is by then. On a slow machine first tokens take a while.
                   "--body", json.dumps({"timeout": 1.25 * args.hold_seconds})]
        loop = thread_seconds(pid)
        whole = json.loads(run(command))
        out = whole["result"]
        out["loop_cpu_s"] = thread_seconds(pid) - loop
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    finally:
        server.stop()
    open_s = sum(1 for one in whole["timeline"]["open"] if one > args.hold - 0.5) * out["seconds"] / len(whole["timeline"]["open"])
    print(f"{out['done']} of {args.hold} streams answered, {out['failed']} failed, {out['most_open']} open at once and all of them for "
          f"{open_s:.0f} s of {out['seconds']:.0f} s; {out['output_tokens']} tokens, gap p50 {out['inter_token_s']['p50']:.2f} s, "
          f"p99 {out['inter_token_s']['p99']:.2f} s; the event loop took {out['loop_cpu_s'] / out['output_tokens'] * 1e6:.1f} us of CPU time "
          f"for each token; server's exit status {server.process.returncode}, {descriptors} descriptors at the end")
    for error in out["errors"]:
        print(f"error: {error['count']} x {error['kind']}: {error['first']}")
    if out["failed"] or open_s < args.hold_seconds or server.process.returncode != 0:
        stop(f"{args.hold} streams were not held for {args.hold_seconds} s")
    return out


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench_peers.common_flags(parser)
    parser.add_argument("--servers", action="store_true", help="compare servers (what this script does unless --hold is given)")
    parser.add_argument("--no-peer", action="store_true", help="celer serve and celer batch alone")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[16], help="streams at once (default 16)")
    parser.add_argument("--requests", type=int, default=64, help="of each run (default 64)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=512, help="of a sequence (default 512)")
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or a name that celer pull knows (default smollm2)")
    parser.add_argument("--device", default="cpu", help="of celer (default cpu, as the peer)")
    parser.add_argument("--cpu-time", action="store_true", help="tokens per second of CPU time of server and client; use --threads 1")
    parser.add_argument("--hold", type=int, metavar="N", help="instead: N streams open at once")
    parser.add_argument("--hold-seconds", type=int, default=120, help="with --hold: how long (default 120)")
    args = parser.parse_args()
    if min(args.runs, args.requests, args.threads, *args.concurrency) < 1 or (args.hold is not None and args.hold < 1):
        parser.error("counts must be at least 1")
    return args


def main():
    args = parse()
    bench_peers.prepare(args)
    model = pathlib.Path(args.model) if os.path.exists(args.model) else bench_peers.model_file(args, args.model)
    if args.hold:
        out = hold(args, model)
    else:
        out = [compare(args, model, streams) for streams in args.concurrency]
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "cpu_time": args.cpu_time, "results": out}, indent=2) + "\n")
        say(f"wrote {args.json}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
