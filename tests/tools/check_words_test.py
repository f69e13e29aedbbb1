#!/usr/bin/env python3
"""tools/check_words.py finds what it is there to find."""
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_words

LIST = "# names\n\\bBePatient\\b -> AgeWaiting\n\nasks? before it asks -> CORS preflight\n\\b(?:its|whatever) company\\b -> the batch\n"


def check(name, text):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / "list.txt").write_text(LIST)
        return list(check_words.phrases(root, check_words.sources(root), check_words.read_list(root / "list.txt")))


class CheckWords(unittest.TestCase):
    def test_phrases_are_named_with_their_line_and_the_better_words(self):
        self.assertEqual(check("src/a.cc", "int x;\n// A browser Asks before it asks.\n"),
                         ["src/a.cc:2: 'Asks before it asks': write CORS preflight"])
        self.assertEqual(check("docs/a.md", "On its company"), ["docs/a.md:1: 'its company': write the batch"])
        self.assertEqual(len(check("tests/cli/a_test.py", "BePatient()  # whatever company")), 2)
        self.assertEqual(len(check("README.md", "BePatient")), 1)

    def test_other_words_and_texts_of_others_are_fine(self):
        for name, text in (("src/a.cc", "BePatiently(); // a company"), ("src/cli/eval/text.txt", "BePatient"),
                           ("tests/chat_templates/published/a.py", "BePatient"), ("src/a.bin", "BePatient")):
            with self.subTest(name=name):
                self.assertEqual(check(name, text), [])

    def test_every_match_holds_a_needle(self):
        for phrase, texts in (("a(?:bc|defg)h", ["bc", "defg"]), (r"\bab+c", ["a"]), ("(?:x)?yz", ["yz"]), (r"\w+", [])):
            with self.subTest(phrase=phrase):
                self.assertEqual(check_words.needles(re._parser.parse(phrase)), texts)

    def test_a_line_without_an_arrow_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "list.txt"
            path.write_text("one\n")
            with self.assertRaises(ValueError):
                check_words.read_list(path)

    def test_misspelled_words_are_found(self):
        program = check_words.find_codespell(check_words.ROOT)
        if not program:
            self.skipTest("no codespell; tools/requirements.txt has it")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tools").mkdir()
            (root / "tools" / "words_ignore.txt").write_text("temprature\n")
            (root / "a.md").write_text("temprature\nrecieve SetRecieve\n")  # a name is not spelled
            self.assertEqual(list(check_words.spelling(root, [root / "a.md"], program)), ["a.md:2: 'recieve': write receive"])


if __name__ == "__main__":
    unittest.main()
