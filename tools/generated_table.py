#!/usr/bin/env python3
"""A table of docs/ that a program prints from the code: generated_table.py --check | --write docs/models.md PROGRAM [ARGUMENT...]"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- tools/generated_table.py writes from here -->\n", "<!-- to here -->\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="fail where the page is not what the program prints")
    what.add_argument("--write", action="store_true", help="renew the page")
    parser.add_argument("page", help="docs/models.md or docs/formats.md")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    page = ROOT / args.page
    table = subprocess.run(args.program, check=True, capture_output=True, text=True).stdout
    before, rest = page.read_text().split(BEGIN)
    written, after = rest.split(END)
    if args.write:
        page.write_text(before + BEGIN + table + END + after)
    elif written != table:
        for line in sorted(set(table.splitlines()) ^ set(written.splitlines())):
            print(("- " if line in written else "+ ") + line)
        sys.exit(f"{args.page} is not what the code says; the same command with --write renews it")


if __name__ == "__main__":
    main()
