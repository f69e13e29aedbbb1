#!/usr/bin/env python3
"""The longest functions, the fullest folders and the lines of each module under src/, include/, tests/, bench/ and examples/.

  tools/sizes.py                     functions over 100 lines, the 15 fullest folders, lines of modules
  tools/sizes.py --lines 80 --folders 30
  tools/sizes.py --check             fails where a folder has more than 40 files, or a function more than 100 lines
                                     that LONG does not name

Functions are found by their braces, without a compiler: comments and strings are taken out first, and a brace that
follows a parameter list outside of any function opens one. Lambdas count with the function they stand in.
"""
import argparse
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MOST_FILES, MOST_LINES = 40, 100
# Kernels whose parts share a block's registers or shared memory, and tests that are one table: to be split when they change.
LONG = {"AttendGroup", "StepKernel", "Attend", "ExpectMatchesDouble", "LoadUnit", "RunEngine", "FlashKernel", "AttendItem", "Attention",
        "FinishHeadsKernel"}
# Comments, raw strings, strings, characters; the digit separator of 1'000 is no quote.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
NAME = re.compile(r"((?:[\w~]+(?:<[^<>()]*>)?::)*(?:operator\s*[^\s\w(]+|operator\s*\(\)|[\w~]+))\s*\(")


def blanked(text):
    """The text without what only looks like code; lines stay where they are."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])
    return DIRECTIVE.sub(blank, NOISE.sub(blank, text))


def opens_function(head):
    """Whether a brace after `head`, the text since the last statement, begins the body of a function."""
    head = re.sub(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>", " ", head).strip()
    if "(" not in head or re.search(r"=\s*$", head):
        return False
    before = head.split("(")[0]
    return not SCOPE.search(before) and "=" not in re.sub(r"operator\s*[=!<>+*/-]*=", "", before)


def functions(text):
    """(name, first line, lines) of each function."""
    text = blanked(text)
    start = 0  # of the statement
    depth_inside = 0  # braces open since the function began
    inside = None
    for match in re.finditer(r"[{};]", text):
        at, sign = match.start(), match[0]
        if inside is not None:
            depth_inside += {"{": 1, "}": -1, ";": 0}[sign]
            if depth_inside == 0:
                name, begin = inside
                first = text.count("\n", 0, begin) + 1
                yield name, first, text.count("\n", 0, at) + 2 - first
                inside, start = None, at + 1
            continue
        head = text[start:at]
        if sign == "{" and opens_function(head):
            begin = start + len(head) - len(head.lstrip())
            named = NAME.search(re.sub(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>|__launch_bounds__\s*\([^)]*\)|\b__attribute__\s*\(\(.*?\)\)", " ", head))
            inside, depth_inside = (named[1] if named else "?", begin), 1
        start = at + 1


def kind(path):
    """Which column of the table of modules a file counts in."""
    return "tests" if re.search(r"_(test|fuzz)\.cc$|test_util", path.name) or path.parts[0] == "tests" else "product"


def check(found, files):
    wrong = [f"{folder}: {number} files; at most {MOST_FILES}" for folder, number in sorted(files.items()) if number > MOST_FILES]
    wrong += [f"{where}: {function} has {lines} lines; at most {MOST_LINES}" for lines, where, function in sorted(found, reverse=True)
              if function.split("::")[-1] not in LONG]
    for line in wrong:
        print(line)
    print(f"sizes: {len(wrong)} too large" if wrong else "sizes: ok")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=MOST_LINES, help="list functions with more lines than this (100)")
    parser.add_argument("--folders", type=int, default=15, help="how many folders to list (15)")
    parser.add_argument("--check", action="store_true", help="fail where something is too large")
    options = parser.parse_args()
    found, files, count, lines_of = [], collections.Counter(), 0, collections.defaultdict(collections.Counter)
    for top in ("src", "include", "tests", "bench", "examples"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = path.relative_to(ROOT)
            text = path.read_text(encoding="utf-8")
            files[str(name.parent)] += 1
            lines_of["/".join(name.parts[:2]) if top == "src" else top][kind(name)] += text.count("\n")
            for function, line, lines in functions(text):
                count += 1
                if lines > options.lines:
                    found.append((lines, f"{name}:{line}", function))
    if options.check:
        return check(found, files)
    print(f"{len(found)} of {count} functions have more than {options.lines} lines:")
    for lines, where, function in sorted(found, reverse=True):
        print(f"  {lines:4}  {where}  {function}")
    print("\nfiles per folder:")
    for folder, number in files.most_common(options.folders):
        print(f"  {number:4}  {folder}")
    print("\nlines per module (product, tests):")
    for module, lines in sorted(lines_of.items(), key=lambda item: -sum(item[1].values())):
        print(f"  {lines['product']:6} {lines['tests']:6}  {module}")
    print(f"  {sum(lines['product'] for lines in lines_of.values()):6} {sum(lines['tests'] for lines in lines_of.values()):6}  all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
