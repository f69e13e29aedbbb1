#!/usr/bin/env bash
# Tests under the sanitizers.
#   tools/test_sanitizers.sh          every unit test with ASan and UBSan, everything with threads with TSan
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
  asan_tests='^(fuzz|core|limits|io|text|formats|kernels|weights|models|engine|cli|golden|golden_default)\.'
  tsan_targets=(celer_core_test celer_io_test celer_text_test celer_engine_test celer_golden_test)
fi
# Tests with threads: the pool, the engine and its thread, and what says in its name that several threads use it.
tsan_tests='^(core\.(ThreadPool|FunctionRef|CachingPool|CpuAllocator|Log)|engine\.|golden_default\.(Engine|Golden\.Any)|.*Threads)'

# Looking for leaks takes seconds at the end of each process, so it is done once for a program and not for each test.
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

check() {  # preset, tests, target...
  local preset="$1" tests="$2"
  shift 2
  local folder="$build-$preset"
  cmake --preset "$preset" -B "$folder" > "$folder-configure.log" 2>&1 || { cat "$folder-configure.log"; exit 1; }
  cmake --build "$folder" --target "$@" -j "$jobs" > "$folder-build.log" 2>&1 || { tail -n 40 "$folder-build.log"; exit 1; }
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
check asan "$asan_tests" "${asan_targets[@]}"
leaks "$build-asan"
check tsan "$tsan_tests" "${tsan_targets[@]}"
