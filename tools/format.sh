#!/usr/bin/env bash
# Formats all C++ and CUDA sources; with --check only says which are not formatted, and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = "--check" ]; then
  clang-format --dry-run -Werror "${files[@]}" 2>&1 | grep -E 'error:' | sed -E 's/:[0-9]+:[0-9]+: error.*//' | sort -u >/tmp/format.$$ || true
  if [ -s /tmp/format.$$ ]; then
    echo "format: run 'make format'; not formatted:"; cat /tmp/format.$$; rm -f /tmp/format.$$; exit 1
  fi
  rm -f /tmp/format.$$
  echo "format: ok (${#files[@]} files)"
else
  clang-format -i "${files[@]}"
fi
