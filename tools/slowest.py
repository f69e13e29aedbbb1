#!/usr/bin/env python3
"""The ten slowest compiler calls of a build and of its builds with sanitizers, and the ten slowest tests of the last ctest.

  tools/slowest.py [BUILD] [--count N]

Times are wall clock, of calls that ran beside each other."""
import argparse
import pathlib
import re


def compiled(folder):
    """{output: seconds} from ninja's log; the last entry of an output counts."""
    found = {}
    log = folder / ".ninja_log"
    if log.exists():
        for line in log.read_text().splitlines():
            fields = line.split("\t")
            if len(fields) >= 4 and fields[0].isdigit():
                found[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return {name: seconds for name, seconds in found.items() if name.endswith(".o") and (folder / name).exists()}


def tested(folder):
    """{test: seconds} of the last run."""
    found = {}
    log = folder / "Testing" / "Temporary" / "LastTest.log"
    if log.exists():
        name = None
        for line in log.read_text(errors="replace").splitlines():
            if match := re.match(r"\d+/\d+ Test: (.*)", line):
                name = match[1]
            elif (match := re.match(r"Test time =\s+([\d.]+) sec", line)) and name:
                found[name] = float(match[1])
    return found


def show(title, times, count):
    if not times:
        return
    print(f"{title} ({len(times)}, {sum(times.values()):.0f} s in all), the slowest:")
    for name, seconds in sorted(times.items(), key=lambda item: -item[1])[:count]:
        print(f"{seconds:8.1f} s  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    for suffix in ("", "-asan", "-tsan"):
        show(f"compiler calls in {options.build}{suffix}", compiled(pathlib.Path(options.build + suffix)), options.count)
    show("tests", tested(pathlib.Path(options.build)), options.count)


if __name__ == "__main__":
    main()
