#!/usr/bin/env python3
"""Checks that under src/ only io/file/atomic_file.cc writes, makes or renames files.

What a user names as an output may be a device, a pipe or a link, and a disk may be full: that is decided in one place.
Tests may write as they like. So may what has no name: std::tmpfile().
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
WRITER = "src/io/file/atomic_file.cc"
FORBIDDEN = [
    (re.compile(r"\b(?:ofstream|fstream)\b(?!>)"), "a stream that writes"),
    (re.compile(r"\bfopen\((?![^\n]*,\s*\"rb?\"\))"), "fopen() to write"),
    (re.compile(r"\b(?:freopen|fdopen|creat|mkstemp|mkostemp)\("), "a file made by hand"),
    (re.compile(r"\bO_(?:CREAT|TRUNC|APPEND|TMPFILE)\b"), "a file opened to be written"),
    (re.compile(r"(?:\bfs::|\bfilesystem::|\bstd::|(?<![\w:])::|(?<![\w:.>]))rename(?:at2?)?\("), "a rename"),
]


def is_test(path):
    return re.search(r"_(?:test|bench|fuzz)\.(?:cc|cu)$|(?:^|_)test_[a-z_]+\.h$", path.name)


def without_comment(line):
    return line.split("//", 1)[0]


def violations(root):
    for path in sorted((root / "src").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix not in SUFFIXES or name == WRITER or is_test(path):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern, what in FORBIDDEN:
                if pattern.search(without_comment(line)):
                    yield f"{name}:{number}: {what}; use AtomicFile, WriteWholeFile or OpenToAppend of io/file/atomic_file.h"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"writers: {len(found)} violations" if found else "writers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
