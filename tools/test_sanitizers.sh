#!/usr/bin/env bash
# Tests under the sanitizers.
#   tools/test_sanitizers.sh          every unit test with ASan and UBSan, everything with threads with TSan, and the server
#                                     under 10,000 hostile requests and under signals with both
#   tools/test_sanitizers.sh --asan   only the first
#   tools/test_sanitizers.sh --tsan   only the second
#   tools/test_sanitizers.sh --server only the last, and the tests of what it stands on with TSan
#   tools/test_sanitizers.sh --ci     what fits into CI: all fuzz corpora, and the modules that handle input (files, networks,
#                                     requests, the quantizer), with ASan and UBSan; the thread pool with TSan. Kernels,
#                                     weights and models are taken as BUILD compiled them.
#   tools/test_sanitizers.sh --python the tests of the Python package with ASan and UBSan in its module's own code; the libraries
#                                     under it are taken as BUILD compiled them
# Builds go to BUILD-asan and BUILD-tsan; BUILD is "build" unless set. REQUESTS says how many hostile requests there are.
set -euo pipefail
cd "$(dirname "$0")/.."
build="${BUILD:-build}"
jobs="${JOBS:-$(nproc)}"
part="${1:-}"

# Names of GoogleTest begin with a capital letter. The Python tests, which do not, run the program as a user does, and some
# compare its speed or its memory.
asan_modules=(base device io limits text formats kernels weights models graph engine quantize_llm quantize_network report hub server cli
              page golden)
asan_flags=()
fuzz_targets=(celer_fuzz)
fuzz_tests='^fuzz\.'
asan_tests="^($(IFS='|'; echo "${asan_modules[*]}")|golden_default)\.[A-Z]"
tsan_modules=(base device io text engine server golden)
# Tests with threads: the pool, the engine and its thread, and what says in its name that several threads use it.
tsan_tests='^(base\.Log|device\.(FunctionRef|ThreadPool|CachingPool|CpuAllocator)|engine\.[A-Z]|server\.[A-Z]|golden_default\.(Engine|Golden\.Any)|.*Threads)'
case "$part" in
  --ci)
    asan_modules=(base device io formats graph engine quantize_llm quantize_network)
    asan_tests="^($(IFS='|'; echo "${asan_modules[*]}"))\.[A-Z]"
    asan_flags=(-DCELER_CUDA=TOOLKIT "-DCELER_PREBUILT=$(realpath "$build")")
    tsan_modules=(base device)
    ;;
  --server)
    tsan_modules=(device engine server)
    ;;
  '' | --asan | --tsan | --python) ;;
  *)
    echo "unknown: $part; expected --asan, --tsan, --server, --python or --ci" >&2
    exit 2
    ;;
esac

# Looking for leaks takes seconds at the end of each process, so it is done once for a program and not for each test.
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
# Use after return is looked for where input is hostile, with the fuzz targets and the server. It needs a second stack, and
# where calls are deep that stack is full and each call searches all of it: some unit tests take minutes instead of seconds.
after_return="detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

programs() {  # module...: their test programs
  printf 'celer_%s_test\n' "$@"
}
build() {  # preset, target...
  local folder="$build-$1" flags=(-DCELER_CUDA=OFF -DCELER_PREBUILT=)
  [ "$1" = asan ] && flags+=("${asan_flags[@]}")
  cmake --preset "$1" -B "$folder" "${flags[@]}" > "$folder-configure.log" 2>&1 || { cat "$folder-configure.log"; exit 1; }
  shift
  cmake --build "$folder" --target "$@" -j "$jobs" > "$folder-build.log" 2>&1 || { tail -n 40 "$folder-build.log"; exit 1; }
}
check() {  # preset, tests
  # Tests of programs that were not built show up in ctest as NAME_NOT_BUILT.
  ctest --test-dir "$build-$1" -R "$2" -E '_NOT_BUILT' --output-on-failure --no-tests=error -j "$jobs"
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
  local python=python3 script count
  [ -x .venv/bin/python ] && python=.venv/bin/python
  for script in robustness life; do
    count=()
    [ "$script" = robustness ] && count=("${REQUESTS:-10000}")
    echo "server.$script with $1"
    CELER_SANITIZED=1 ASAN_OPTIONS="detect_leaks=1:$after_return:quarantine_size_mb=16:${ASAN_OPTIONS#*:}" \
      "$python" "tests/server/${script}_test.py" "$1/tests/celer_serve" "${count[@]}" || { echo "failed: server.$script with $1"; exit 1; }
  done
}

# Python itself is not sanitized, so that the sanitizers come in front of it, and leaks are those of its own.
python_package() {
  local folder="$build-asan-python" site="$build-asan-python/site" modules cuda script failed=0
  # The libraries of BUILD may hold CUDA code.
  cuda="$(sed -n 's/^CELER_CUDA:[A-Z]*=//p' "$build/CMakeCache.txt")"
  modules="$(find "$build/src" -name 'libceler_*.a' -printf '%f\n' | sed 's/^libceler_//; s/\.a$//' | paste -sd ';')"
  cmake --preset asan -B "$folder" "-DCELER_CUDA=$cuda" -DCELER_PYTHON=ON "-DCELER_PREBUILT=$(realpath "$build")" \
    "-DCELER_PREBUILT_MODULES=$modules" > "$folder-configure.log" 2>&1 || { cat "$folder-configure.log"; exit 1; }
  cmake --build "$folder" --target _celer -j "$jobs" > "$folder-build.log" 2>&1 || { tail -n 40 "$folder-build.log"; exit 1; }
  rm -rf "$site" && mkdir -p "$site" && cp -r python/celer "$site/" && cp "$folder"/python/_celer*.so "$site/celer/"
  for script in llm session misuse more examples; do
    CELER_SANITIZED=1 PYTHONPATH="$site" PYTHONMALLOC=malloc ASAN_OPTIONS="detect_leaks=0:$ASAN_OPTIONS" \
      LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)" \
      .venv/bin/python "tests/python/${script}_test.py" || failed=1
  done
  return "$failed"
}

mapfile -t asan_targets < <(programs "${asan_modules[@]}")
mapfile -t tsan_targets < <(programs "${tsan_modules[@]}")
if [ "$part" = --python ]; then
  python_package
  exit
fi
if [ "$part" = --server ]; then
  build asan celer_serve
  serve "$build-asan"
  build tsan celer_serve "${tsan_targets[@]}"
  check tsan '^(device\.ThreadPool|engine\.[A-Z]|server\.[A-Z])'
  serve "$build-tsan"
  exit
fi
if [ "$part" != --tsan ]; then
  build asan "${fuzz_targets[@]}" "${asan_targets[@]}"
  ASAN_OPTIONS="$after_return:$ASAN_OPTIONS" check asan "$fuzz_tests"
  check asan "$asan_tests"
  leaks "$build-asan"
fi
if [ "$part" != --asan ]; then
  build tsan "${tsan_targets[@]}"
  check tsan "$tsan_tests"
fi
if [ -z "$part" ]; then
  for preset in asan tsan; do
    build "$preset" celer_serve
    serve "$build-$preset"
  done
fi
