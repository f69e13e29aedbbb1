#!/usr/bin/env python3
"""tools/check_comments.py finds what it is there to find."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_comments


def check(name, text):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content in (("src/io/file.h", ""), ("src/text/words.h", ""), ("tools/make.sh", ""), (name, text)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        return list(check_comments.violations(root))


class CheckComments(unittest.TestCase):
    def test_files_that_do_not_exist_are_named_with_their_line(self):
        for name, text in (("src/io/a.cc", "\n// As none.h has it."), ("src/io/a.cu", "\nint x;  // see io/none.cc"),
                           ("src/io/a.h", "/* one\n none.cuh */"), ("include/celer/a.h", "\n// docs/none.md"),
                           ("tools/a.py", '"""One line,\nand none.h."""'), ("tests/CMakeLists.txt", "\nadd(x)  # none.cmake"),
                           ("docs/a.md", "\nsee `none.py`"), ("bench/a.sh", "\n# text/file.h"),
                           ("src/io/a.cc", "\nint x = 1'000;  // it's in none.h, isn't it")):
            with self.subTest(text=text):
                self.assertIn(f"{name}:2: there is no ", "\n".join(check(name, text)))

    def test_base_names_and_paths_are_fine(self):
        for name, text in (("src/io/a.cc", "// file.h, io/file.h, src/io/file.h, make.sh"), ("docs/a.md", "file.h and `text/words.h`"),
                           ("src/io/a.cc", '#include "text/words.h"\n// words.h'), ("src/io/a.cc", '// text/words.h'),
                           ("bench/a.cc", "// words.h"), ("tools/a.py", "# file.h")):
            with self.subTest(text=text):
                self.assertEqual(check(name, text), [])

    def test_a_base_name_of_another_module_needs_its_folder(self):
        self.assertEqual(check("src/io/a.cc", "// words.h"),
                         ["src/io/a.cc:1: words.h is in src/text; name it with its folder"])

    def test_code_patterns_addresses_and_data_are_left_alone(self):
        for name, text in (("src/io/a.cc", 'Open("none.h");'), ("src/io/a.cc", 'auto s = R"(// none.h)";'),
                           ("src/io/a.cc", "// x_test.cc, *_fuzz.cc, <none.h>, _cuda.cu, https://a.org/none.h, config.json, none.h()"),
                           ("docs/a.md", "```\nnone.h\n```"), ("tools/a.py", 'name = "none.h"'), ("CHANGELOG.md", "none.h went")):
            with self.subTest(text=text):
                self.assertEqual(check(name, text), [])


if __name__ == "__main__":
    unittest.main()
