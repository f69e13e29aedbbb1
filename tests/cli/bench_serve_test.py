#!/usr/bin/env python3
"""celer bench --serve-trace and --simulate on tiny models: what it prints must fit together and nothing may get lost.
Speeds themselves are not judged here.

usage: bench_serve_test.py PATH_TO_CELER        (Python's standard library only)
"""
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from written_page import WrittenPage

CELER = None
SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = SOURCE / "tests/golden/gguf/llama3-q8_0.gguf"
HERE = ["--device", "cpu", "--threads", 1, "--kv-memory", "32MiB"]
FOLDER = tempfile.TemporaryDirectory(prefix="celer_serve_")


def celer(*args):
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "COLUMNS": "200"})
    return done.returncode, done.stdout, done.stderr


def run(*args):
    return celer("bench", *args)


def long_model():
    """Golden models have few positions."""
    path = pathlib.Path(FOLDER.name) / "long.gguf"
    if not path.exists():
        code, _, err = celer("synth", "tinyllama-1.1b", "--weights", "q8_0", "-o", path, "--layers", 2, "--hidden", 64,
                             "--intermediate", 96, "--vocab", 300, "--heads", 4, "--kv-heads", 2, "--head-dim", 32)
        assert code == 0, err
    return path


def serve(*args):
    code, out, err = run(*args, "--json")
    assert code == 0, (args, code, err)
    return json.loads(out)


def write(name, text):
    path = pathlib.Path(FOLDER.name) / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def azure(name="azure.csv", count=12):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:17:{3 + i * 0.05:010.7f},{1 + i * 7 % 30},{1 + i * 5 % 11}" for i in range(count)]
    return write(name, "\r\n".join(lines) + "\r\n")


def mooncake(name="mooncake.jsonl.gz", turns=4, users=5):
    """Conversations: each turn repeats the blocks of the turns before it."""
    lines = []
    for turn in range(turns):
        for user in range(users):
            ids = [0] + [1 + user * turns + i for i in range(turn + 1)]
            lines.append(json.dumps({"timestamp": 20000 * turn + 1000 * user, "input_length": 512 * len(ids) - 3 * user,
                                     "output_length": 64 + user, "hash_ids": ids}))
    return write(name, "\n".join(lines) + "\n")


class Check(unittest.TestCase):
    def check(self, report):
        result = report["result"]
        self.assertEqual(result["done"] + result["failed"], result["requests"])
        self.assertEqual(result["requests"], report["trace"]["requests"])
        for name in ("ttft_s", "inter_token_s", "end_to_end_s"):
            p = result[name]
            self.assertTrue(0 < p["p50"] <= p["p90"] <= p["p99"] <= p["max"], (name, p))
            self.assertTrue(0 < p["mean"] <= p["max"])
        self.assertLessEqual(result["busy_s"], result["seconds"] * (1 + 1e-6))
        self.assertTrue(math.isclose(result["ratio"], result["limit_s"] / result["busy_s"]))
        self.assertTrue(math.isclose(result["output_tokens_per_s"], result["output_tokens"] / result["seconds"]))
        self.assertTrue(math.isclose(result["hit_rate"], result["cached_tokens"] / result["prompt_tokens"]))
        self.assertTrue(0 < result["kv_mean"] <= result["kv_peak"] <= 1)
        machine = report["machine"]
        self.assertGreaterEqual(result["limit_s"], result["bytes"] / machine["read_bytes_per_s"] * (1 - 1e-9))
        return result


class Served(Check):
    """A golden model, in real time."""

    def test_every_token_of_a_trace_comes(self):
        report = serve(MODEL, "--serve-trace", azure(), *HERE, "--target-ttft", 1e6, "--target-itl", 1e6)
        result = self.check(report)
        self.assertEqual(result["failed"], 0)
        self.assertEqual(result["prompt_tokens"], sum(1 + i * 7 % 30 for i in range(12)))
        self.assertEqual(result["output_tokens"], sum(1 + i * 5 % 11 for i in range(12)))
        self.assertEqual(result["goodput"]["requests"], 12)
        self.assertGreaterEqual(result["seconds"], 0.55)  # the last arrives then: it is not served before
        self.assertIsNone(report["simulated"])

    def test_random_arrivals_and_scales(self):
        report = serve(MODEL, "--serve-poisson", 20, "--requests", 10, "--prompt-tokens", 40, "--output-tokens", 8,
                       "--length-scale", 0.5, "--rate-scale", 10, *HERE, "--target-ttft", 1e-6)
        result = self.check(report)
        self.assertEqual((result["prompt_tokens"], result["output_tokens"]), (200, 40))
        self.assertEqual(result["goodput"]["requests"], 0)
        self.assertLess(report["trace"]["seconds"], 0.5)

    def test_the_same_text_in_steps_of_any_size(self):
        args = [MODEL, "--serve-poisson", 1000, "--requests", 8, "--prompt-tokens", 30, "--output-tokens", 8, *HERE]
        self.assertEqual(serve(*args, "--chunk", 4)["result"]["text"], serve(*args)["result"]["text"])

    def test_shared_prefixes_are_found(self):
        report = serve(MODEL, "--serve-trace", mooncake(), "--rate-scale", 40, "--length-scale", 0.0625, *HERE)
        result = self.check(report)
        self.assertEqual(result["failed"], 0)
        self.assertGreater(report["trace"]["hit_bound"], 0.4)
        self.assertLessEqual(result["hit_rate"], report["trace"]["hit_bound"])
        self.assertGreater(result["hit_rate"], 0.3 * report["trace"]["hit_bound"])

    def test_measured_and_simulated(self):
        report = serve(long_model(), "--serve-trace", azure(), "--simulate", "this", "--compare", *HERE)
        result = self.check(report)
        comparison = report["comparison"]
        self.assertGreater(len(comparison["steps"]), 20)
        simulated = comparison["simulated"]
        for name in ("requests", "done", "prompt_tokens", "output_tokens"):
            self.assertEqual(simulated[name], result[name])
        # What it prints is what --efficiency takes.
        again = serve(MODEL, "--serve-trace", azure(), "--simulate", "this", "--efficiency", comparison["efficiency"])
        self.assertEqual(again["simulated"], comparison["efficiency"])


class Simulated(Check):
    def test_the_same_every_time(self):
        args = ["llama-3.1-8b", "--serve-trace", azure(), "--simulate", "h200", "--target-ttft", 500]
        first = serve(*args)
        self.check(first)
        second = serve(*args)
        for report in (first, second):  # the host's time is the one thing that is real
            self.assertGreaterEqual(report["result"].pop("cpu_s"), 0)
        self.assertEqual(first, second)
        self.assertEqual(first["simulated"], "read=0.8,arithmetic=0.6,overlap=0.5,step=100us,row=0us")
        self.assertIn("simulated h200", first["settings"]["device"])

    def test_a_faster_machine_is_faster(self):
        args = ["llama-3.1-8b", "--serve-poisson", 5, "--requests", 200, "--prompt-tokens", 500, "--output-tokens", 100]
        slow, fast = serve(*args, "--simulate", "rtx4090"), serve(*args, "--simulate", "h200")
        for report in (slow, fast):
            self.check(report)
        self.assertLess(fast["result"]["inter_token_s"]["p50"], 0.5 * slow["result"]["inter_token_s"]["p50"])
        self.assertEqual(fast["result"]["text"], slow["result"]["text"])
        smaller = serve(*args, "--simulate", "rtx4090", "--weights", "int4")
        self.assertLess(smaller["result"]["inter_token_s"]["p50"], slow["result"]["inter_token_s"]["p50"])
        self.assertGreater(smaller["settings"]["kv_tokens"], slow["settings"]["kv_tokens"])

    def test_an_efficiency_of_one_reaches_the_limit_of_a_step(self):
        perfect = "read=1,arithmetic=1,overlap=1,step=0us,row=0us"
        report = serve("llama-3.1-8b", "--serve-poisson", 1, "--requests", 1, "--prompt-tokens", 1, "--output-tokens", 200,
                       "--simulate", "h200", "--efficiency", perfect)
        # One sequence by itself: nothing can be batched, and reading binds every operator.
        self.assertAlmostEqual(report["result"]["ratio"], 1, delta=0.01)

    def test_a_cache_that_is_large_enough_comes_near_the_bound(self):
        # Four turns, each long after the one before.
        report = serve("llama-3.1-8b", "--serve-trace", mooncake(), "--simulate", "h200")
        result = self.check(report)
        self.assertGreater(report["trace"]["hit_bound"], 0.5)
        self.assertGreater(result["hit_rate"], report["trace"]["hit_bound"] - 0.02)

    def test_a_file_is_simulated_elsewhere(self):
        report = serve(MODEL, "--serve-trace", azure(), "--simulate", "a100-80g")
        self.check(report)
        self.assertEqual(report["result"]["failed"], 0)


class Output(unittest.TestCase):
    def test_text(self):
        code, out, err = run("llama-3.1-8b", "--serve-trace", azure(), "--simulate", "h200", "--target-itl", 50)
        self.assertEqual((code, err), (0, ""))
        for text in ("first token (TTFT)", "from token to token", "p99", "goodput", "preempted", "would have", "KV use", "ratio",
                     "simulated  with read=0.8"):
            self.assertIn(text, out)

    def test_html(self):
        path = pathlib.Path(FOLDER.name) / "serve.html"
        code, _, err = run("llama-3.1-8b", "--serve-trace", azure(), "--simulate", "h200", "--html", path)
        self.assertEqual(code, 0, err)
        page = WrittenPage(path)
        self.assertEqual(len(page.pictures), 4)
        for words in ("Served within", "whole answer", "Tokens computed in a step", "waiting"):
            self.assertIn(words, page.words())

    def test_sentences(self):
        bad_line = write("bad.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,1\n2023-11-16 18:17:04,x,1\n")
        cut = write("cut.jsonl", "{}\n")
        cut.write_bytes(mooncake().read_bytes()[:40])
        for args, says in (
                (["--serve-trace", "no-such-file"], "no-such-file: no such file"),
                (["--serve-trace", bad_line], "bad.csv: line 3: ContextTokens is 'x', expected 1 to"),
                (["--serve-trace", cut], "cut.jsonl: cannot be unpacked: the file ends early"),
                (["--serve-trace", azure(), "--serve-poisson", 1], "exclude each other"),
                (["--serve-trace", azure(), "--prompt", 5], "--prompt has no effect when a trace is served"),
                (["--serve-trace", azure(), "--prompt-tokens", 5], "--prompt-tokens has no effect with --serve-trace"),
                (["--rate-scale", 2], "--rate-scale needs --serve-trace or --serve-poisson"),
                (["--simulate", "h200"], "--simulate needs --serve-trace or --serve-poisson"),
                (["--serve-poisson", 0], "--serve-poisson"),
                (["--serve-poisson", 1, "--serve-seed", "x"], "--serve-seed x: expected a whole number"),
                (["--serve-poisson", 1, "--simulate", "h300"], "h300"),
                (["--serve-poisson", 1, "--simulate", "h200", "--compare"], "needs --simulate this"),
                (["--serve-poisson", 1, "--efficiency", "read=2"], "as in read=0.8"),
                (["--serve-poisson", 1, "--target-ttft", "soon"], "--target-ttft")):
            code, out, err = run(MODEL, *args)
            self.assertEqual((code, out), (2, ""), args)
            self.assertIn(says, err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)
        code, _, err = run("no-such-model", "--serve-poisson", 1, "--simulate", "h200")
        self.assertEqual(code, 2)
        self.assertIn("no-such-model", err)
        code, _, err = run("llama-3.1-70b", "--serve-poisson", 1, "--simulate", "rtx4090")
        self.assertEqual(code, 1)  # as any other model that does not fit
        self.assertIn("the weights take", err)

    def test_requests_that_never_fit_are_counted(self):
        report = serve(MODEL, "--serve-trace", azure(), "--context", 24, *HERE)
        self.assertGreater(report["result"]["failed"], 0)
        self.assertGreater(report["result"]["done"], 0)
        _, out, _ = run(MODEL, "--serve-trace", azure(), "--context", 24, *HERE)
        self.assertIn("not done, the first: needs", out)


if __name__ == "__main__":
    CELER = sys.argv.pop(1)
    unittest.main()
