#!/usr/bin/env python3
"""tools/check_writers.py finds what it is there to find."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_writers


def check(name, line):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#pragma once\n{line}\n")
        return list(check_writers.violations(pathlib.Path(folder)))


class CheckWriters(unittest.TestCase):
    def test_writers_are_named_with_their_line(self):
        for line in ("std::ofstream out(path);", 'std::FILE* f = std::fopen(p, "wb");', 'fopen(path.c_str(), "r+b")', "fopen(p, mode);",
                     "fs::rename(a, b, error);", "std::rename(a, b);", "  ::rename(a, b);", "if (rename(a, b) != 0) return;",
                     "const int fd = ::open(p, O_WRONLY | O_CREAT, 0644);", "flags |= O_TRUNC;", "std::fstream both(path);",
                     "::mkstemp(name);", '::freopen(path, "w", stdout);', "std::filesystem::rename(a, b);"):
            with self.subTest(line=line):
                self.assertIn("src/cli/a.cc:2: ", "\n".join(check("src/cli/a.cc", line)))

    def test_readers_are_fine(self):
        for line in ("std::ifstream in(path);", '#include <fstream>', 'std::fopen(path.c_str(), "rb")', "// std::ofstream would not do",
                     "node.rename(other);", "Prename(x);", "::open(p, O_RDONLY | O_CLOEXEC)", "std::tmpfile()"):
            with self.subTest(line=line):
                self.assertEqual(check("src/cli/a.cc", line), [])

    def test_the_one_place_and_tests_may_write(self):
        for name in ("src/io/file/atomic_file.cc", "src/io/x_test.cc", "src/io/file/test_folder.h", "tools/x.cc"):
            with self.subTest(name=name):
                self.assertEqual(check(name, "std::ofstream out(path);"), [])


if __name__ == "__main__":
    unittest.main()
