#!/usr/bin/env bash
# Configures and builds, with one line for each; what the tools say goes to log files beside the build folder.
#   tools/build.sh run build     what `make run` needs of celer, for this machine: CUDA only with a GPU
#   tools/build.sh celer build   celer with every command, for this machine
#   tools/build.sh test build    everything that `make test` needs, CUDA wherever nvcc is
# CMAKE_FLAGS and JOBS are taken from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/phases.sh
purpose="$1"
build="$2"
preset=default
target=all
if [ "$purpose" != test ]; then preset="$purpose"; target=celer; fi

# A folder that was set up for the tests has a celer with everything in it: another configuration would only compile it
# all again.
if [ "$purpose" != test ] && grep -qs '^CELER_TESTS:BOOL=ON' "$build/CMakeCache.txt"; then preset=; fi
# Nor does `make run` take commands away that `make celer` built.
if [ "$purpose" = run ] && grep -qs '^CELER_ONLY_RUN:BOOL=OFF' "$build/CMakeCache.txt"; then preset=; fi
if [ -n "$preset" ]; then
  phase_begin configure
  # shellcheck disable=SC2086  # several flags in one variable
  if ! cmake --preset "$preset" -B "$build" ${CMAKE_FLAGS:-} > "$build-configure.log" 2>&1; then
    phase_end failed
    cat "$build-configure.log" >&2
    exit 1
  fi
  phase_end "$(sed -n 's/^-- celer: \(.*, CUDA .*\)/\1/p' "$build-configure.log")"
fi

phase_begin build
log="$build-build.log"
: > "$log"
# ninja's own lines, "[17/223] Building...": the counter is shown, the rest is logged.
follow() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line" >> "$log"
    case "$line" in \[*/*\]*) phase_update "${line%%]*}]" ;; esac
  done
}
if ! NINJA_STATUS='[%f/%t] ' cmake --build "$build" --target "$target" -j "${JOBS:-$(nproc)}" 2>&1 | follow; then
  phase_end failed
  # The first error with what the compiler said, not the steps that went well before it; where no step failed, the end.
  { sed -n '/^FAILED:/,$p' "$log" | grep -v '^\[[0-9]*/[0-9]*\]' || tail -n 20 "$log"; } | head -n 60 >&2 || true
  echo "the whole log: $log" >&2
  exit 1
fi
steps="$(grep -c '^\[[0-9]*/[0-9]*\]' "$log" || true)"
phase_end "$([ "$steps" = 0 ] && echo 'nothing to do' || echo "$steps steps")"
