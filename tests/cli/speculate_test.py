#!/usr/bin/env python3
"""What is said about speculative decoding: speculate_test.py CELER. A draft that cannot pay is named at the start with the predicted gain,
--speculate-always drafts all the same, and the counts are in the JSON."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CELER = None
SHAPE = ["--layers", "2", "--hidden", "256", "--intermediate", "512", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "64"]


class Speculate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_speculate_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.env = {**os.environ, "CELER_CACHE": str(cls.folder / "cache")}
        cls.model = cls.folder / "model.gguf"
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", "f32", "-o", cls.model, *SHAPE], check=True, capture_output=True,
                       timeout=60)

    def ask(self, *flags, code=0):
        result = subprocess.run([CELER, "run", self.model, "a b c a b c a b", "--device", "cpu", "-n", "24", "--raw", "--ignore-end",
                                 "--temperature", "0", *flags], capture_output=True, text=True, timeout=120, env=self.env)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def test_a_draft_that_cannot_pay(self):
        result = self.ask("--speculate", str(self.model), "--json")  # as large as the model itself
        usage = json.loads(result.stdout)["usage"]
        self.assertEqual((usage["drafted_tokens"], usage["accepted_tokens"]), (0, 0))
        self.assertLess(usage["predicted_gain"], 0.8)
        self.assertRegex(result.stderr, r"the draft reads 100 % of what the model reads")
        self.assertIn(f"{usage['predicted_gain']:.2f} times its plain speed", result.stderr)
        self.assertIn("--speculate-always", result.stderr)
        self.assertEqual(result.stderr.count("warning:"), 1)
        said = " ".join(self.ask("--speculate", str(self.model)).stderr.split())  # whatever the line breaks
        self.assertIn("nothing was drafted: it would not pay", said)

    def test_always(self):
        plain = json.loads(self.ask("--json").stdout)
        self.assertNotIn("drafted_tokens", plain["usage"])
        for flags in (["--speculate", str(self.model)], ["--speculate", str(self.model), "--draft-depth", "2"], ["--speculate", "lookup"]):
            with self.subTest(flags):
                result = self.ask("--json", "--speculate-always", *flags)
                forced = json.loads(result.stdout)
                self.assertEqual(forced["tokens"], plain["tokens"])
                self.assertNotIn("warning:", result.stderr)
                self.assertLessEqual(forced["usage"]["accepted_tokens"], forced["usage"]["drafted_tokens"])
                if flags[1] != "lookup":  # the same model is always right
                    self.assertGreater(forced["usage"]["drafted_tokens"], 0)
                    self.assertGreater(forced["usage"]["accepted_tokens"], 0)
                    self.assertLess(forced["usage"]["steps"], 23)

    def test_a_draft_that_may_pay_is_not_warned_of(self):
        result = self.ask("--speculate", "self:int4", "--json")
        self.assertGreater(json.loads(result.stdout)["usage"]["predicted_gain"], 1.04)
        self.assertNotIn("warning:", result.stderr)

    def test_always_alone(self):
        self.assertIn("--speculate-always needs --speculate", self.ask("--speculate-always", code=2).stderr)


if __name__ == "__main__":
    CELER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
