#!/usr/bin/env bash
# Tests under the sanitizers.
#   tools/test_sanitizers.sh          every unit test with ASan and UBSan, everything with threads with TSan, and the server
#                                     under hostile requests and signals with both
#   tools/test_sanitizers.sh --server only the last
#   tools/test_sanitizers.sh --ci     what fits into CI: the parsers' fuzz corpora and the modules that need no other
#                                     with ASan and UBSan, the thread pool with TSan
# Builds go to BUILD-asan and BUILD-tsan; BUILD is "build" unless set.
set -euo pipefail
cd "$(dirname "$0")/.."
build="${BUILD:-build}"
jobs="${JOBS:-$(nproc)}"

if [ "${1:-}" = "--ci" ]; then
  asan_targets=(celer_fuzz celer_core_test celer_io_test celer_formats_test)
  asan_tests='^(fuzz|core|io|formats)\.'
  tsan_targets=(celer_core_test)
else
  asan_targets=(all)
  # The Python tests run the program as a user does, and some compare its speed or its memory.
  asan_tests='^(fuzz|core|limits|io|text|formats|kernels|weights|models|graph|quantize|engine|server|cli|golden|golden_default)\.'
  tsan_targets=(celer_core_test celer_io_test celer_text_test celer_engine_test celer_server_test celer_golden_test celer)
fi
if [ "${1:-}" = "--server" ]; then
  asan_targets=(celer) tsan_targets=(celer celer_engine_test celer_server_test)
fi
# Tests with threads: the pool, the engine and its thread, and what says in its name that several threads use it.
tsan_tests='^(core\.(ThreadPool|FunctionRef|CachingPool|CpuAllocator|Log)|engine\.|server\.[A-Z]|golden_default\.(Engine|Golden\.Any)|.*Threads)'

# Looking for leaks takes seconds at the end of each process, so it is done once for a program and not for each test.
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

build() {  # preset, target...
  local folder="$build-$1"
  cmake --preset "$1" -B "$folder" > "$folder-configure.log" 2>&1 || { cat "$folder-configure.log"; exit 1; }
  shift
  cmake --build "$folder" --target "$@" -j "$jobs" > "$folder-build.log" 2>&1 || { tail -n 40 "$folder-build.log"; exit 1; }
}
check() {  # preset, tests, target...
  local preset="$1" tests="$2"
  shift 2
  local folder="$build-$preset"
  build "$preset" "$@"
  # Tests of programs that were not built show up in ctest as NAME_NOT_BUILT.
  ctest --test-dir "$folder" -R "$tests" -E '_NOT_BUILT' --output-on-failure --no-tests=error -j "$jobs"
}
leaks() {  # folder: its test programs, each as one process; tests that expect its death have many
  local program
  while IFS= read -r program; do
    ASAN_OPTIONS="detect_leaks=1" "$program" --gtest_brief=1 --gtest_filter='-*Death*' > "$1-leaks.log" 2>&1 ||
      { tail -n 40 "$1-leaks.log"; echo "leaks: $program"; exit 1; }
  done < <(find "$1/src" -name 'celer_*_test' -type f -perm -u+x)
}
# A report ends the server, and the test with it. Leaks are looked for where the server ends by a signal that asks it to.
serve() {  # folder
  local python=python3 script
  [ -x .venv/bin/python ] && python=.venv/bin/python
  for script in robustness life; do
    echo "server.$script with $1"
    CELER_SANITIZED=1 ASAN_OPTIONS="detect_leaks=1:quarantine_size_mb=16:${ASAN_OPTIONS#*:}" \
      "$python" "tests/server/${script}_test.py" "$1/celer" || { echo "failed: server.$script with $1"; exit 1; }
  done
}
if [ "${1:-}" = "--server" ]; then
  build asan "${asan_targets[@]}"
  serve "$build-asan"
  check tsan '^(engine\.|server\.[A-Z])' "${tsan_targets[@]}"
  serve "$build-tsan"
  exit
fi
check asan "$asan_tests" "${asan_targets[@]}"
leaks "$build-asan"
check tsan "$tsan_tests" "${tsan_targets[@]}"
if [ "${1:-}" != "--ci" ]; then
  serve "$build-asan"
  serve "$build-tsan"
fi
