#!/usr/bin/env bash
# `make bench`: every micro-benchmark program that was built.
set -euo pipefail
build="${1:-build}"
for bench in $(find "$build/src" -name "celer_*_bench" -type f -perm -u+x | sort); do
  echo "== $(basename "$bench")"
  "$bench" --benchmark_min_time=0.2
done
