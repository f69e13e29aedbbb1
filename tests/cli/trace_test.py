#!/usr/bin/env python3
"""celer run, batch and bench with --trace: trace_test.py CELER. What is in the file, and that it is always JSON."""
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

CELER = None
SHAPE = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "32"]
OPERATORS = {"embed", "qkv", "attention", "output", "gate_up", "down", "logits", "sampling"}


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_trace_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.model = cls.folder / "model.gguf"
        cls.trace = cls.folder / "trace.json"
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", cls.model, *SHAPE], check=True,
                       capture_output=True, timeout=60)

    def celer(self, *args, code=0):
        result = subprocess.run([CELER, *map(str, args), "--device", "cpu", "--threads", "1", "--trace", self.trace], text=True,
                                capture_output=True, timeout=300)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    # By name and phase.
    def events(self):
        found = collections.defaultdict(list)
        for event in json.loads(self.trace.read_text()):
            found[event["name"], event["ph"]].append(event)
        return found

    def test_run(self):
        result = self.celer("run", self.model, "hello", "--raw", "-n", "6", "--ignore-end")
        self.assertIn(f"wrote {self.trace} with ", result.stderr)
        events = self.events()
        steps = events["step", "X"]
        self.assertEqual(len(steps), 6)
        self.assertEqual([step["args"]["new_tokens"] for step in steps], [1] * 6)
        self.assertGreaterEqual(steps[0]["args"]["tokens"], 1)
        self.assertEqual([step["args"]["tokens"] for step in steps[1:]], [1] * 5)
        for part in ("schedule", "run", "commit"):
            self.assertEqual(len(events[part, "X"]), 6)
        # Two layers, so each of a layer's operators runs twelve times; and each lies within a step's run.
        for name in OPERATORS:
            self.assertEqual(len(events[name, "X"]), 6 if name in ("embed", "logits", "sampling") else 12, name)
            for operator in events[name, "X"]:
                self.assertTrue(any(run["ts"] <= operator["ts"] + 0.002 and
                                    operator["ts"] + operator["dur"] <= run["ts"] + run["dur"] + 0.002
                                    for run in events["run", "X"]), name)
        (begin,), (end,) = events["request", "b"], events["request", "e"]
        self.assertEqual(begin["id"], end["id"])
        self.assertEqual(end["args"], {"finish": "length", "tokens": 6})
        self.assertLess(begin["ts"], steps[0]["ts"])
        self.assertEqual(len(events["to the first token", "e"]), 1)
        self.assertGreater(max(e["args"]["used"] for e in events["KV blocks", "C"]), 0)
        self.assertEqual(sum(e["args"]["new"] for e in events["tokens per step", "C"]), 6)

    def test_batch_with_preemptions(self):
        lines = [{"prompt": f"{i} " * 5, "max_tokens": 60, "ignore_eos": True} for i in range(8)]
        (self.folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        # Room for fewer than all of them at once.
        self.celer("batch", self.model, self.folder / "in.jsonl", "-o", self.folder / "out.jsonl", "--context", "128",
                   "--kv-memory", "128KiB", "--json", "--restart")
        events = self.events()
        self.assertEqual(len(events["request", "b"]), 8)
        self.assertEqual(len(events["request", "e"]), 8)
        self.assertEqual({e["args"]["tokens"] for e in events["request", "e"]}, {60})
        self.assertGreater(max(e["args"]["waiting"] for e in events["sequences", "C"]), 0)
        self.assertGreater(max(e["args"]["running"] for e in events["sequences", "C"]), 1)

    def test_bench_with_its_own_profile(self):
        report = json.loads(self.celer("bench", self.model, "--prompt", "20", "--tokens", "5", "--repeat", "2", "--ops",
                                       "--json").stdout)
        self.assertTrue(any(op["calls"] for result in report["results"] for op in result["ops"]), report["results"][0])
        events = self.events()
        self.assertEqual(len(events["request", "b"]), len(events["request", "e"]))
        self.assertEqual(len(events["sampling", "X"]), len(events["step", "X"]))  # before, during and after the profile

    def test_killed(self):
        (self.folder / "long.jsonl").write_text(
            "".join(json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True}) + "\n" for _ in range(300)))
        self.trace.unlink(missing_ok=True)
        child = subprocess.Popen([CELER, "batch", self.model, self.folder / "long.jsonl", "-o", self.folder / "long.out",
                                  "--device", "cpu", "--threads", "1", "--trace", self.trace, "-q", "--context", "1000",
                                  "--restart"])
        end = time.monotonic() + 60
        while time.monotonic() < end and not (self.trace.exists() and self.trace.stat().st_size > 1000):
            time.sleep(0.01)
        time.sleep(0.3)
        child.kill()
        child.wait()
        self.assertTrue(self.events()["step", "X"])

    def test_a_path_that_cannot_be_written(self):
        result = subprocess.run([CELER, "run", self.model, "x", "--trace", self.folder / "no" / "trace.json"], text=True,
                                capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"\Aerror: .*trace.json: cannot be written: [^\n]+\n\Z")


if __name__ == "__main__":
    CELER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
