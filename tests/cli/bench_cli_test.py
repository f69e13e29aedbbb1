#!/usr/bin/env python3
"""celer bench on tiny synthetic models: what it prints must fit together. Speeds themselves are not judged here.

usage: bench_cli_test.py PATH_TO_CELER        (Python's standard library only)
"""
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
FOLDER = tempfile.TemporaryDirectory(prefix="celer_bench_")
HIDDEN, VOCAB, LAYERS = 64, 300, 2
SMALL = ["--layers", LAYERS, "--hidden", HIDDEN, "--intermediate", 96, "--vocab", VOCAB, "--heads", 4, "--kv-heads", 2,
         "--head-dim", 32]


def run(*args):
    # What is checked is the CPU's counting, also where there is a GPU.
    if args[0] == "bench" and "--help" not in args:
        args = (*args, "--device", "cpu")
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "COLUMNS": "200"})  # every table in one piece
    return done.returncode, done.stdout, done.stderr


def model(name, preset, weights, *more):
    path = pathlib.Path(FOLDER.name) / name
    if not path.exists():
        code, _, err = run("synth", preset, "--weights", weights, "-o", path, *SMALL, *more)
        assert code == 0, err
    return path


def dense():
    return model("dense.gguf", "tinyllama-1.1b", "q8_0")


def bench(*args):
    code, out, err = run("bench", *args, "--json")
    assert code == 0, (args, code, err)
    return json.loads(out)


class Json(unittest.TestCase):
    def check(self, report):
        machine = report["machine"]
        for result in report["results"]:
            seconds = result["seconds"]
            self.assertEqual(len(seconds), report["settings"]["repeat"])
            self.assertTrue(all(s > 0 for s in seconds))
            self.assertEqual((result["min_s"], result["max_s"]), (min(seconds), max(seconds)))
            self.assertTrue(result["min_s"] <= result["median_s"] <= result["max_s"])
            self.assertAlmostEqual(result["memory_s"], result["bytes"] / machine["read_bytes_per_s"])
            self.assertEqual(result["limit_s"], max(result["memory_s"], result["compute_s"]))
            self.assertTrue(math.isclose(result["ratio"], result["limit_s"] / result["median_s"]))
            self.assertTrue(math.isclose(result["tokens_per_s"], result["tokens"] / result["median_s"]))
            self.assertTrue(math.isclose(result["limit_tokens_per_s"], result["tokens"] / result["limit_s"]))
            memory_binds = result["memory_s"] > result["compute_s"]
            self.assertEqual(result["bound_by"] == "memory", memory_binds)
            if "ops" not in result:
                continue
            ops = {op["name"]: op for op in result["ops"]}
            total = sum(op["seconds"] for op in ops.values())
            self.assertLessEqual(total, result["mean_s"] * (1 + 1e-9))
            self.assertTrue(math.isclose(total + result["rest_s"], result["mean_s"]))
            self.assertTrue(math.isclose(sum(op["bytes"] for op in ops.values()), result["bytes"]))
            for dtype, flops in result["flops"].items():
                self.assertTrue(math.isclose(sum(op["flops"].get(dtype, 0) for op in ops.values()), flops))
            for op in ops.values():
                self.assertGreater(op["calls"], 0, op)
                self.assertTrue(math.isclose(op["share"], op["seconds"] / result["mean_s"]))
                if op["ratio"] is not None:
                    self.assertTrue(math.isclose(op["ratio"], op["limit_s"] / op["seconds"]))
            self.assertIsNone(ops["sampling"]["ratio"])  # it reads no weights

    def test_every_combination(self):
        report = bench(dense(), "--prompt", "5,33", "--depth", "0,32", "--batch", "1,3", "--tokens", 4, "--repeat", 3, "--ops")
        self.check(report)
        got = [(r["phase"], r.get("prompt", r.get("depth")), r["batch"]) for r in report["results"]]
        self.assertEqual(got, [("prefill", n, b) for b in (1, 3) for n in (5, 33)] +
                         [("decode", n, b) for b in (1, 3) for n in (0, 32)])
        self.assertGreater(report["start"]["load_s"], 0)
        self.assertGreater(report["start"]["first_token_s"], report["start"]["load_s"])
        self.assertEqual(report["start"]["prompt"], 5)

    def test_bytes_are_weights_and_kv(self):
        report = bench(dense(), "--prompt", 33, "--depth", "0,40", "--batch", "1,3", "--tokens", 4, "--repeat", 1)
        weights, kv = report["model"]["weight_bytes"], report["model"]["kv_bytes_per_token"]
        self.assertEqual(kv, 2 * 2 * LAYERS * 2 * 32)
        row = HIDDEN * 34 // 32  # of the embedding
        for result in report["results"]:
            batch = result["batch"]
            if result["phase"] == "prefill":
                expected = weights + 33 * batch * (kv + row)
            else:
                expected = sum(weights + batch * ((result["depth"] + i + 1) * kv + row) for i in range(4))
            self.assertEqual(result["bytes"], expected, result["phase"])

    def test_calls_of_a_decode(self):
        result = bench(dense(), "--prompt", 0, "--batch", 2, "--tokens", 3, "--repeat", 2, "--ops")["results"][0]
        calls = {op["name"]: op["calls"] for op in result["ops"]}
        per_layer = 3 * LAYERS
        self.assertEqual(calls, {"embed": 3, "qkv": per_layer, "attention": per_layer, "output": per_layer,
                                 "gate_up": per_layer, "down": per_layer, "logits": 3, "sampling": 3})

    def test_mixture_of_experts(self):
        mixture = model("mixture.gguf", "mixtral-8x7b", "q4_0", "--experts", 4)
        report = bench(mixture, "--prompt", 8, "--tokens", 3, "--batch", "1,2", "--repeat", 2, "--ops")
        self.check(report)
        names = [op["name"] for op in report["results"][0]["ops"]]
        self.assertIn("moe", names)
        self.assertNotIn("gate_up", names)

    def test_threads_are_rated_against_as_many_cores(self):
        few = ["--prompt", 4, "--tokens", 2, "--repeat", 1]
        one, all_of_them = bench(dense(), *few, "--threads", 1), bench(dense(), *few)
        self.check(one)
        self.assertTrue(one["machine"]["name"].endswith(", 1 core"), one["machine"]["name"])
        code, out, err = run("probe", "--device", "cpu", "--threads", 1, "--json")
        self.assertEqual(code, 0, err)
        probe = json.loads(out)["devices"][0]
        self.assertTrue(probe["from_cache"])
        self.assertEqual(probe["rates"]["read"]["value"], one["machine"]["read_bytes_per_s"])
        if all_of_them["settings"]["threads"] > 1:
            self.assertLess(one["machine"]["flops"]["f32"], 0.8 * all_of_them["machine"]["flops"]["f32"])

    def test_settings_reach_the_engine(self):
        report = bench(dense(), "--prompt", 4, "--tokens", 2, "--repeat", 1, "--kv", "f32", "--threads", 1, "--weights", "int8",
                       "--context", 100, "--batch", 4, "--chunk", 2)
        self.check(report)
        settings = report["settings"]
        self.assertEqual((settings["threads"], settings["kv"], settings["context"]), (1, "f32", 100))
        self.assertEqual(report["model"]["kv_bytes_per_token"], 2 * 4 * LAYERS * 2 * 32)
        self.assertTrue(any(name.startswith("int8") for name in report["model"]["bytes_by_format"]))

    def test_one_phase_alone(self):
        only = [r["phase"] for r in bench(dense(), "--prompt", 0, "--tokens", 2, "--repeat", 1)["results"]]
        self.assertEqual(only, ["decode"])
        only = [r["phase"] for r in bench(dense(), "--prompt", 4, "--tokens", 0, "--repeat", 1)["results"]]
        self.assertEqual(only, ["prefill"])


class Output(unittest.TestCase):
    FEW = ["--prompt", 6, "--tokens", 3, "--repeat", 2]

    def test_text(self):
        code, out, err = run("bench", dense(), *self.FEW, "--depth", 20, "--ops")
        self.assertEqual((code, err), (0, ""))  # no progress line where there is no terminal
        for text in ("prefill 6", "decode at 16", "limit tok/s", "bound by", "first token after", "attention", "  rest "):
            self.assertIn(text, out)
        code, out, _ = run("bench", dense(), *self.FEW)
        self.assertNotIn("attention", out)

    def test_html(self):
        path = pathlib.Path(FOLDER.name) / "bench.html"
        code, _, err = run("bench", dense(), *self.FEW, "--ops", "--html", path)
        self.assertEqual(code, 0, err)
        page = WrittenPage(path)
        # Two figures; eight operators and the rest for each.
        self.assertEqual([len(bars) for bars in page.parts("bars")], [2, 9, 9])
        self.assertEqual(len(page.parts("table")), 3)
        self.assertEqual([r["phase"] for r in page.data["results"]], ["prefill", "decode"])

    def test_html_over_batch_sizes(self):
        path = pathlib.Path(FOLDER.name) / "batches.html"
        code, _, err = run("bench", dense(), "--prompt", 0, "--depth", "0,16", "--batch", "1,3", "--tokens", 2, "--repeat", 1,
                           "--html", path)
        self.assertEqual(code, 0, err)
        page = WrittenPage(path)
        self.assertEqual(len(page.pictures), 2)  # a chart for each depth
        self.assertIn("celer", page.words())
        self.assertIn("limit", page.words())
        self.assertNotIn("SGLang", page.texts)  # nothing is known of it here

    def test_help_begins_with_an_example(self):
        code, out, _ = run("bench", "--help")
        self.assertEqual(code, 0)
        self.assertIn("example: celer bench", out.splitlines()[1])
        for flag in ("--prompt", "--depth", "--batch", "--tokens", "--repeat", "--ops", "--json", "--html", "--weights", "--kv",
                     "--threads", "--context"):
            self.assertIn(flag, out)

    def test_sentences(self):
        for args, says in (
                (["no-such-model"], "no-such-model"),
                ([], "one of MODEL, --ladder PRESET, --sample and --server URL"),
                ([dense(), "--ladder", "llama-2-7b"], "one of MODEL, --ladder PRESET, --sample and --server URL"),
                (["--ladder", "no-such-model"], "no-such-model"),
                (["--ladder", "llama-2-7b"], "--ladder measures a GPU"),
                ([dense(), "--prompt", "x"], "--prompt"),
                ([dense(), "--prompt", "-1"], "--prompt"),
                ([dense(), "--depth", "1,2x"], "--depth"),
                ([dense(), "--batch", "0"], "--batch"),
                ([dense(), "--batch", "100000"], "--batch"),
                ([dense(), "--repeat", "0"], "--repeat"),
                ([dense(), "--tokens", "many"], "--tokens"),
                ([dense(), "--prompt", "0", "--tokens", "0"], "nothing to measure"),
                ([dense(), "--prompt", "1M"], "--prompt"),
                ([dense(), "--depth", "4k"], "smaller --prompt, --depth or --tokens"),
                ([dense(), "--prompt", "50", "--context", "20"], "--context 20: the longest sequence needs"),
                ([dense(), "--kv", "int3"], "--kv 'int3'"),
                ([dense(), "--launch", "rocket"], "--launch 'rocket'"),
                ([dense(), "--weights", "q9"], "q9"),
                ([dense(), "--threads", "-2"], "--threads"),
                ([dense(), "--opps"], "did you mean '--ops'"),
                ([dense(), *self.FEW, "--html", "/no/such/folder/x.html"], "cannot be written"),
        ):
            code, out, err = run("bench", *args)
            self.assertEqual((code, out), (2, ""), (args, err))
            self.assertTrue(err.startswith("error: ") and err.count("\n") == 1, err)
            self.assertIn(says, err)


class Peers(unittest.TestCase):
    """make bench-peers builds llama.cpp and takes long; here only what it says before that."""

    def peers(self, *args):
        return subprocess.run([sys.executable, str(SOURCE / "bench" / "peers" / "bench_peers.py"), *args], capture_output=True,
                              text=True, timeout=300)

    def test_rows(self):
        done = self.peers("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("decode-q8_0", done.stdout)
        done = self.peers("--only", "decode-q9")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no row 'decode-q9'", done.stderr)
        done = self.peers("--celer", "/no/such/celer", "--only", "decode-q8_0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/celer is missing", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: bench_cli_test.py CELER [unittest arguments]")
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
