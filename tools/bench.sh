#!/usr/bin/env bash
# `make bench`: every micro-benchmark program that was built.
set -euo pipefail
build="${1:-build}"
for bench in "$build"/src/*/celer_*_bench; do
  echo "== $(basename "$bench")"
  "$bench" --benchmark_min_time=0.2
done
