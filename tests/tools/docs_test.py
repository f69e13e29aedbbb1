#!/usr/bin/env python3
"""Links and paths in the documentation lead to files that exist."""
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:src|include|tests|tools|bench|cmake|docs|examples|deploy)/[\w./@-]+)`")


def dead_ends(root):
    found = []
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        text = page.read_text()
        for link in LINK.findall(text):
            if not re.match(r"\w+:", link) and not (page.parent / link).exists():
                found.append(f"{page.relative_to(root)}: the link {link} leads nowhere")
        for path in PATH.findall(text):
            if not (root / path).exists():
                found.append(f"{page.relative_to(root)}: there is no {path}")
    return found


class Docs(unittest.TestCase):
    def test_everything_named_exists(self):
        self.assertEqual(dead_ends(ROOT), [])

    def test_dead_ends_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs" / "a.md").write_text("[b](b.md) [web](https://x.org/y) [self](a.md#part) `src/none.h` `src/<name>/`")
            self.assertEqual(dead_ends(root), ["docs/a.md: the link b.md leads nowhere", "docs/a.md: there is no src/none.h"])


if __name__ == "__main__":
    unittest.main()
