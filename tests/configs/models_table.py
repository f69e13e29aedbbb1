#!/usr/bin/env python3
"""The table in docs/models.md, from the code: models_table.py --runner build-cpu/tests/configs/celer_models_table --check | --write"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- models_table.py writes from here -->\n", "<!-- to here -->\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", required=True, help="celer_models_table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    table = subprocess.run([args.runner, ROOT / "tests" / "golden" / "models"], check=True, capture_output=True, text=True).stdout
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    written, after = rest.split(END)
    if args.write:
        PAGE.write_text(before + BEGIN + table + END + after)
    elif written != table:
        for line in sorted(set(table.splitlines()) ^ set(written.splitlines())):
            print(("- " if line in written else "+ ") + line)
        sys.exit("docs/models.md is not what the code says; models_table.py --write renews it")


if __name__ == "__main__":
    main()
