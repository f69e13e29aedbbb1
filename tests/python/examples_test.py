"""The scripts of examples/python, which are those of vLLM with another import, on a model with random weights."""
import subprocess
import sys
import unittest

import tiny

SETTINGS = ["--threads", "1", "--kv-cache-memory-bytes", str(8 << 20), "--max_model_len", "512"]


class Scripts(tiny.Case):
    def run_script(self, name, *args):
        done = subprocess.run([sys.executable, tiny.ROOT / "examples/python" / name, *args], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stdout

    def test_basic(self):
        self.assertEqual(self.run_script("basic.py", tiny.model()).count("generated text"), 4)

    def test_chat(self):
        said = self.run_script("chat.py", "--model", tiny.model(), "--chat-template", str(tiny.TEMPLATE), "--max-tokens", "4", *SETTINGS)
        self.assertEqual(said.count("Generated text"), 11)
        self.assertIn("higher education", said)

    def test_embed(self):
        self.assertEqual(self.run_script("embed.py", "--model", tiny.model(), *SETTINGS).count("(size=64)"), 4)

    def test_structured_outputs(self):
        try:
            import pydantic  # noqa: F401
        except ImportError:
            self.skipTest("pydantic is not installed")
        said = self.run_script("structured_outputs.py", tiny.model())
        self.assertRegex(said, r"choice: (Positive|Negative)\n")
        self.assertRegex(said, r"grammar: SELECT col_[12]  from table_[12]  where col_[12] = [12] ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
