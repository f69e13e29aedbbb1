#!/usr/bin/env python3
"""The table in docs/formats.md, from the code: formats_table.py --runner build-cpu/tests/celer_formats_table --check | --write"""

import argparse
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- formats_table.py writes from here -->\n", "<!-- to here -->\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", required=True, help="celer_formats_table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    table = subprocess.run([args.runner], check=True, capture_output=True, text=True).stdout
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    written, after = rest.split(END)
    if args.write:
        PAGE.write_text(before + BEGIN + table + END + after)
    elif written != table:
        for line in sorted(set(table.splitlines()) ^ set(written.splitlines())):
            print(("- " if line in written else "+ ") + line)
        sys.exit("docs/formats.md is not what the code says; formats_table.py --write renews it")


if __name__ == "__main__":
    main()
