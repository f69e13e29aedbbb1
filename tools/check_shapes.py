#!/usr/bin/env python3
"""Keeps the aborting constructors of Shape out of the graph runtime, whose sizes come from files: MakeShape, PartOf,
ListShape and HasDims (src/graph/ir/operator.h) are for numbers that are known only at run time.

Literal dimensions are allowed. Anything else needs `// shape: why it cannot be wrong` on its line or the one before."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Shape{a, b}, Shape(x), Shape name{a, b}, Shape name(x): not MakeShape, ConvShape or declarations of functions.
MAKES = re.compile(r"(?<![\w:<])(?:celer::)?Shape(?:\s+\w+)?\s*([({])")
LITERAL = re.compile(r"[\s\d,{}()']*$")
TESTS = ("_test.cc", "_fuzz.cc", "build_graph.h", "fuzz_network.h", "fuzz_nodes.h", "fuzz_forms.h")


def argument(text, at):
    """What stands between the bracket at `at` and its partner."""
    depth = 0
    for i in range(at, len(text)):
        depth += text[i] in "({"
        depth -= text[i] in ")}"
        if depth == 0:
            return text[at + 1:i]
    return text[at + 1:]


def without_comments(line):
    return line.split("//")[0]


def faults(path):
    lines = path.read_text().splitlines()
    text = "\n".join(without_comments(line) for line in lines)
    for match in MAKES.finditer(text):
        inside = argument(text, match.start(1))
        if LITERAL.match(inside):
            continue
        # A function that gives a Shape: its parameters have types.
        if match.group(1) == "(" and re.match(r"\s*(const\s|[\w:]+[&*]?\s+[&*]?\w+\s*[,)=]|[\w:]+[&*]?\s+\w+$)", inside):
            continue
        row = text.count("\n", 0, match.start())
        if any("// shape:" in line for line in lines[max(0, row - 1):row + 1]):
            continue
        yield row + 1, lines[row].strip()


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = 0
    for path in sorted((root / "src" / "graph").rglob("*")):
        if path.suffix not in (".cc", ".h") or path.name.endswith(TESTS):
            continue
        for row, line in faults(path):
            found += 1
            print(f"{path.relative_to(root)}:{row}: {line}")
    if found:
        print("a Shape of run-time numbers aborts when they are wrong: use MakeShape, PartOf, ListShape or HasDims")
        return 1
    print("shapes: none is made unchecked in src/graph")
    return 0


if __name__ == "__main__":
    sys.exit(main())
