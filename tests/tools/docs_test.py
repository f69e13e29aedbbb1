#!/usr/bin/env python3
"""Links and paths in the documentation lead to files that exist."""
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
NAME = re.compile(r"`((?:[A-Za-z]\w*::)*[A-Z][a-z]\w*[A-Z]?\w*)(?:\(\))?`")
FLAG = re.compile(r"`(--[a-z][a-z-]+)")
EXAMPLES = {"BlockIq4Xs", "src/formats/iq/iq4_xs.h", "src/formats/iq/iq4_xs.cc"}  # what docs/add_a_format.md adds
# Pages that follow the code from file to file: what they call by a name of the code is there.
GUIDES = ("path_of_a_*.md", "add_a*.md")
PATH = re.compile(r"`((?:src|include|tests|tools|bench|cmake|docs|examples|deploy)/[\w./@-]+)`")


def dead_ends(root):
    found = []
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        text = page.read_text()
        for link in LINK.findall(text):
            if not re.match(r"\w+:", link) and not (page.parent / link).exists():
                found.append(f"{page.relative_to(root)}: the link {link} leads nowhere")
        for path in PATH.findall(text):
            if path not in EXAMPLES and not (root / path).exists():
                found.append(f"{page.relative_to(root)}: there is no {path}")
    return found


def sources(root):
    for folder in ("src", "include", "tools", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu", ".cuh", ".py", ".in"}:
                yield path.read_text(encoding="utf-8", errors="replace")


def unknown_names(root):
    """Types, functions and flags in the guides that the code does not have."""
    pages = [page for pattern in GUIDES for page in sorted(root.glob("docs/" + pattern))]
    texts = list(sources(root))
    words = set().union(*(re.findall(r"\w+|--[a-z][a-z-]+", text) for text in texts)) if texts else set()
    found = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for name in NAME.findall(text):
            owner, _, member = name.rpartition("::")
            parts = name.split("::")
            if name in EXAMPLES:
                continue
            if not all(part in words for part in parts):
                found.append(f"{page.name}: the code has no {name}")
            elif owner and not any(re.search(rf"\b{parts[-2]}\b", text) and re.search(rf"\b{member}\b", text) for text in texts):
                found.append(f"{page.name}: {parts[-2]} has no {member}")
        for flag in FLAG.findall(text):
            if flag not in words:
                found.append(f"{page.name}: there is no flag {flag}")
    return found


class Docs(unittest.TestCase):
    def test_everything_named_exists(self):
        self.assertEqual(dead_ends(ROOT), [])

    def test_guides_name_what_the_code_has(self):
        self.assertEqual(unknown_names(ROOT), [])

    def test_unknown_names_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "src").mkdir()
            (root / "src" / "a.h").write_text("class Engine { void Step(); };  // --chunk\n")
            (root / "src" / "b.h").write_text("void Load();\n")
            (root / "docs" / "path_of_a_b.md").write_text("`Engine::Step` `Engine::Load` `Motor` `--chunk` `--piece`")
            self.assertEqual(unknown_names(root), ["path_of_a_b.md: Engine has no Load", "path_of_a_b.md: the code has no Motor",
                                                   "path_of_a_b.md: there is no flag --piece"])

    def test_dead_ends_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs" / "a.md").write_text("[b](b.md) [web](https://x.org/y) [self](a.md#part) `src/none.h` `src/<name>/`")
            self.assertEqual(dead_ends(root), ["docs/a.md: the link b.md leads nowhere", "docs/a.md: there is no src/none.h"])


if __name__ == "__main__":
    unittest.main()
