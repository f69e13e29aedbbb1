#!/usr/bin/env python3
"""What the README promises: `make run`'s script works, and every `celer COMMAND` it names exists and explains itself.

  python3 readme_test.py build/celer
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

CELER = os.path.abspath(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


class Readme(unittest.TestCase):
    def test_every_command_has_help_with_an_example(self):
        names = set(re.findall(r"`celer ([a-z]+)", README))
        self.assertGreater(len(names), 8)
        for name in names:
            with self.subTest(command=name):
                done = subprocess.run([CELER, name, "--help"], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("example: celer " + name, done.stdout)

    def test_every_link_leads_somewhere(self):
        for target in re.findall(r"\]\(([^)#]+)\)", README):
            if "://" not in target:
                self.assertTrue((ROOT / target).exists(), target)

    def test_make_run(self):
        done = subprocess.run([ROOT / "tools/run.sh", CELER], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("smollm2-135m", "llama-3.2-1b", "llama-3.1-8b", "bound by"):
            self.assertIn(word, done.stdout)
        if "sha256 ok" in done.stderr or "[" in done.stderr:
            self.assertIn("of this machine's limit", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
