#!/usr/bin/env python3
"""Checks that phrases of tools/words.txt do not come back, and spelling with codespell where it is installed.

Prints file, line and the better words. codespell comes with tools/requirements.txt; words that it takes for mistakes and that are none
are in tools/words_ignore.txt.
"""
import pathlib
import re
import re._constants as ops
import re._parser
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "docs", "tools", "tests", "examples")
FILES = ("README.md", "CONTRIBUTING.md")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".js", ".css", ".html"}
# Texts that are not ours: a novel, tables, what others published. And the list's own files.
SKIPPED = re.compile(r"(?:^|/)(?:eval/text\.txt|check_words_test\.py)$|"
                     r"^tests/(?:golden/\w+|chat_templates/published|conformance|fuzz/corpus|tokenizers)/")
IDENTIFIER = r"\b\w*[a-z][A-Z]\w*\b"  # codespell would spell the words of camelCase names together


def needles(tree):
    """Plain texts, one of which is in every match of a parsed expression; empty if there is no such. They make the search quick."""
    found, run = [], ""
    for op, arg in [*tree, (None, None)]:
        if op is ops.LITERAL:
            run += chr(arg)
            continue
        found, run = found + ([[run]] if run else []), ""
        if op is ops.BRANCH:
            branches = [needles(branch) for branch in arg[1]]
            found += [sum(branches, [])] if all(branches) else []
        elif op is ops.SUBPATTERN:
            found += [needles(arg[3])]
    return max(found, key=lambda texts: min(map(len, texts), default=0), default=[])


class Rule:
    def __init__(self, phrase, better):
        self.phrase, self.better = re.compile(phrase, re.IGNORECASE), better
        self.needles = needles(re._parser.parse(phrase.lower())) or [""]

    def may_match(self, lower_text):
        return any(needle in lower_text for needle in self.needles)


def read_list(path):
    rules = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        phrase, arrow, better = line.rpartition(" -> ")
        if not arrow:
            raise ValueError(f"{path}:{number}: expected PHRASE -> BETTER")
        rules.append(Rule(phrase, better))
    return rules


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and not SKIPPED.search(path.relative_to(root).as_posix()):
                yield path
    yield from (root / name for name in FILES if (root / name).exists())


def phrases(root, paths, rules):
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        lower = text.lower()
        possible = [rule for rule in rules if rule.may_match(lower)]
        for number, line in enumerate(text.splitlines() if possible else [], 1):
            for rule in possible:
                if found := rule.phrase.search(line):
                    yield f"{path.relative_to(root)}:{number}: '{found[0]}': write {rule.better}"


def find_codespell(root):
    beside = root / ".venv" / "bin" / "codespell"
    return str(beside) if beside.exists() else shutil.which("codespell")


def spelling(root, paths, program):
    command = [program, "--ignore-words", str(root / "tools" / "words_ignore.txt"), "--ignore-regex", IDENTIFIER]
    names = [str(path.relative_to(root)) for path in paths]
    result = subprocess.run([*command, *names], cwd=root, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 65):  # 65: it found something
        raise RuntimeError(f"{program} failed: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        where, _, what = line.partition(": ")
        wrong, _, better = what.partition(" ==> ")
        yield f"{where}: '{wrong}': write {better}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    paths = list(sources(root))
    found = list(phrases(root, paths, read_list(root / "tools" / "words.txt")))
    codespell = find_codespell(root)
    if codespell:
        found += spelling(root, paths, codespell)
    for line in found:
        print(line)
    print(f"words: {len(found)} to replace" if found else "words: ok" + ("" if codespell else " (spelling not checked: no codespell)"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
