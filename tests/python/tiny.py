"""A small model with random weights for the tests of the Python package, made with the package's own program."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "tests/chat_templates/chatml.jinja"
SETTINGS = {"context": 256, "threads": 1, "kv_memory": "8MiB"}
SANITIZED = "CELER_SANITIZED" in os.environ
FOLDER = tempfile.TemporaryDirectory(prefix="celer-python-")


def celer_command(*args, **options):
    return subprocess.run([sys.executable, "-m", "celer", *map(str, args)], capture_output=True, text=True, timeout=300, **options)


def model(name="tiny", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=32):
    path = pathlib.Path(FOLDER.name) / f"{name}.gguf"
    if not path.exists():
        celer_command("synth", "llama-3.1-8b", "--weights", "q8_0", "-o", path, "--layers", layers, "--hidden", hidden, "--intermediate",
                      intermediate, "--vocab", 600, "--heads", heads, "--kv-heads", kv_heads, "--head-dim", head_dim, check=True)
    return str(path)


def larger():
    """32 million parameters: a step takes milliseconds, and its memory is seen beside Python's."""
    return model("larger", 4, 768, 3072)


class Case(unittest.TestCase):
    maxDiff = None

    def assert_error(self, kind, words, call):
        """One exception of this type with a sentence that has these words."""
        with self.assertRaises(kind) as raised:
            call()
        self.assertIs(type(raised.exception), kind, repr(raised.exception))
        text = str(raised.exception)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, text)
        self.assertGreater(len(text), 15)
