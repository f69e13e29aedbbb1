#!/usr/bin/env python3
"""Makes tests/fuzz/corpus/operators/: one seed for each operator of docs/operators.md, its name and bytes that follow from it.
hostile_nodes_test.cc says when an operator has none; run this then."""
import hashlib
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def main():
    folder = HERE / "corpus" / "operators"
    folder.mkdir(parents=True, exist_ok=True)
    names = set()
    for line in (HERE.parents[1] / "docs" / "operators.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[2][:1].isdigit():
            names.add(cells[1])
    for name in names:
        (folder / name).write_bytes(name.encode() + b"\n" + hashlib.sha256(name.encode()).digest()[:24])
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


if __name__ == "__main__":
    main()
