#!/usr/bin/env python3
"""tools/check_layers.py finds what it is there to find."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


def check(files, table="base:\ndevice:\nio:\nmodels: io\nquantize/llm: models\nquantize/network: io\n"):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"tools/layers.txt": table, "include/celer/api.h": "", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class CheckLayers(unittest.TestCase):
    def test_downward_is_fine(self):
        self.assertEqual(check({"src/models/a.cc": '#include "io/b.h"\n#include "base/c.h"\n#include "device/d.h"\n#include "celer/api.h"\n'})[0], 0)

    def test_upward_is_named_with_its_line(self):
        code, out = check({"src/io/a.h": '#pragma once\n#include "models/b.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("src/io/a.h:2: io may not include models", out)

    def test_base_includes_nobody(self):
        self.assertIn("base may not include io", check({"src/base/a.cu": '#include "io/b.h"\n'})[1])
        self.assertIn("base may not include device", check({"src/base/a.h": '#include "device/b.h"\n'})[1])
        self.assertIn("device may not include io", check({"src/device/a.h": '#include "io/b.h"\n'})[1])

    def test_a_room_of_two_folders(self):
        self.assertEqual(check({"src/quantize/llm/layer/a.cc": '#include "models/b.h"\n#include "quantize/llm/c.h"\n'})[0], 0)
        code, out = check({"src/quantize/network/a.cc": '#include "quantize/llm/b.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("quantize/network may not include quantize/llm", out)

    def test_unknown_modules_and_paths(self):
        self.assertIn("'secret' has no row", check({"src/secret/a.cc": ""})[1])
        self.assertIn("is not a path from src/", check({"src/io/a.cc": '#include "b.h"\n'})[1])
        self.assertIn("no public header", check({"src/io/a.cc": '#include "celer/none.h"\n'})[1])

    def test_a_bad_table_is_an_error(self):
        self.assertNotEqual(check({}, "base\n")[0], 0)
        self.assertNotEqual(check({}, "base:\nio: nowhere\n")[0], 0)


if __name__ == "__main__":
    unittest.main()
