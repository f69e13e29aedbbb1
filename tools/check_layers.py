#!/usr/bin/env python3
"""Checks that includes under src/ point downward only, by the table in tools/layers.txt."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def read_table(path):
    allowed = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        module, colon, rest = line.partition(":")
        if not colon:
            sys.exit(f"{path}:{number}: expected 'module: modules', got '{line}'")
        allowed[module.strip()] = set(rest.split())
    for module, below in allowed.items():
        for name in below - allowed.keys():
            sys.exit(f"{path}: '{module}' names '{name}', which has no row")
    return allowed


def room_of(path, allowed):
    """The room of a path from src/: its first folder, or its first two where the table has them."""
    parts = path.split("/")
    two = "/".join(parts[:2])
    return two if two in allowed else parts[0]


def open_to(room):
    """Rooms that need no row."""
    return {"base": set(), "device": {"base"}}.get(room, {"base", "device"})


def violations(root, allowed):
    source = root / "src"
    for path in sorted(source.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        module = room_of(path.relative_to(source).as_posix(), allowed)
        if module not in allowed:
            yield f"{path.relative_to(root)}: module '{module}' has no row in tools/layers.txt"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = room_of(match.group(1), allowed)
            where = f"{path.relative_to(root)}:{number}"
            if match.group(1).startswith("celer/"):
                if not (root / "include" / match.group(1)).exists():
                    yield f"{where}: no public header include/{match.group(1)}"
            elif target not in allowed:
                yield f"{where}: '{match.group(1)}' is not a path from src/"
            elif target not in {module} | open_to(module) | allowed[module]:
                yield f"{where}: {module} may not include {target}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(violations(root, read_table(root / "tools" / "layers.txt")))
    for line in found:
        print(line)
    print(f"layers: {len(found)} violations" if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
