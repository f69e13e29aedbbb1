#!/usr/bin/env python3
"""tools/check_shapes.py finds what it is there to find."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_shapes.py"


def check(text, name="src/graph/ops/a.cc"):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
        return done.returncode, done.stdout


class CheckShapes(unittest.TestCase):
    def test_numbers_of_a_run_are_found(self):
        for line in ("return c.Set(0, t, Shape{in[0], in[1] * b});", "const Shape all{h.batch, h.heads};", "x = Shape(dims);",
                     "const Shape small((std::span<const int64_t>(kept)));", "if (!(s == Shape{n,\n  m})) return;"):
            code, out = check("\n" + line + "\n")
            self.assertEqual(code, 1, line)
            self.assertIn("src/graph/ops/a.cc:2: " + line.split("\n")[0], out)

    def test_literals_and_checked_ones_are_fine(self):
        for line in ("Shape{}", "Shape{2, 3}", "Shape({256})", "MakeShape({a, b})", "const ConvShape s{.batch = x[0]};",
                     "Result<Shape> Broadcast(std::span<const Shape> shapes);", "Shape PartOf(const Shape& shape, int begin, int end);",
                     "Shape ListShape(size_t n);", "// Shape{a, b} in a comment", "std::vector<Shape>{a, b}",
                     "return Shape(dims);  // shape: of a constant", "// shape: of a constant\nreturn Shape(dims);"):
            self.assertEqual(check(line + "\n")[0], 0, line)

    def test_tests_may_do_as_they_like(self):
        self.assertEqual(check("Shape(dims)", "src/graph/a_test.cc")[0], 0)


if __name__ == "__main__":
    unittest.main()
