#!/usr/bin/env bash
# Makes the wheel of the Python package: BUILD/wheels/celer-*.whl. Out of the module that is in the build folder, where there
# is one, else everything is compiled for it. It is for the kind of machine that this runs on: tried on x86-64, not on aarch64.
#   tools/wheel.sh build [--sdist]
set -euo pipefail
cd "$(dirname "$0")/.."
build="$1"
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || { echo "wheel: no $python; run tools/setup.sh test first" >&2; exit 1; }
mkdir -p "$build/wheels"
build="$(cd "$build" && pwd)"
log="$build/wheel.log"

settings=()
module="$build/python/_celer.abi3.so"
if grep -qsE '^CELER_PYTHON:STRING=(AUTO|ON)' "$build/CMakeCache.txt"; then
  cmake --build "$build" --target _celer > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
if [ -e "$module" ]; then
  settings=(-C "cmake.define.CELER_PYTHON_MODULE=$module" -C "build-dir=$build/wheel")
fi

say() { cat "$log" >&2; echo "wheel: $1; the log above is $log" >&2; exit 1; }
rm -rf "$build/wheels/raw" && rm -f "$build"/wheels/*.whl
"$python" -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation -w "$build/wheels/raw" "${settings[@]}" . > "$log" 2>&1 ||
  say "it could not be built"

# Copies what is not on every Linux into the wheel and gives it the tag that its symbols allow.
PATH="$("$python" -c 'import sys, os; print(os.path.dirname(sys.executable))'):$PATH" \
  "$python" -m auditwheel repair --strip -w "$build/wheels" "$build"/wheels/raw/celer-*.whl >> "$log" 2>&1 || say "auditwheel refused it"
rm -rf "$build/wheels/raw"
if [ "${2:-}" = --sdist ]; then
  "$python" -m build --sdist --no-isolation -o "$build/wheels" . >> "$log" 2>&1 || say "no sdist"
fi
ls -l "$build"/wheels/celer-* | awk '{ printf "%s  %.1f MB\n", $NF, $5 / 1e6 }'
