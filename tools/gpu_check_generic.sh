# Read by tools/gpu_check.sh, with $build, $out and $failed: the generic kernels on a GPU of compute capability 9.0. The twins
# of -DCELER_CUDA_TWIN=90 carry them; CELER_CUDA_ARCH says which GPU's limits count.

# The tests of CUDA files in a folder or a file, as a filter.
cuda_tests() {
  find "$@" -name '*cuda*test.cc' | xargs grep -hoE '^TEST(_F|_P)?\([A-Za-z0-9_]+' | sed -E 's/.*\(//' | sort -u |
    sed -E 's,(.*),\1.*:*/\1.*,' | paste -sd:
}

# generic_tests ARCH: the test programs one beside the other, each test in one process.
generic_tests() {
  local arch="$1" log="$out/generic_$1" pids=() names=()
  mkdir -p "$log"
  start() {  # name, program, filter
    CELER_CUDA_ARCH="$arch" timeout 400 "$build/$2_generic" --gtest_brief=1 --gtest_filter="$3" > "$log/$1.txt" 2>&1 &
    pids+=($!) names+=("$1")
  }
  start kernels celer_kernels_test "$(cuda_tests src/kernels)"
  start weights celer_weights_test "$(cuda_tests src/weights)"
  start models celer_models_test "$(cuda_tests src/models)"
  start engine celer_engine_test "$(cuda_tests src/engine)"
  start quantize celer_quantize_llm_test "$(cuda_tests src/quantize/llm)"
  start golden celer_cuda_test '*'
  local i
  for i in "${!pids[@]}"; do
    if wait "${pids[$i]}"; then
      echo "generic, as $arch: ${names[$i]}: $(grep -E '^\[  PASSED  \]' "$log/${names[$i]}.txt" || true)"
    else
      echo "generic, as $arch: ${names[$i]} failed"
      grep -E '^\[  FAILED  \]|Failure|terminate|CUDA' "$log/${names[$i]}.txt" | head -n 20 || true
      failed=1
    fi
  done
}

# The rows of the table in docs/performance.md, and beside them the same with the program's own kernels.
generic_bench() {
  local text="$out/generic_bench.txt" name arch program
  rm -f "$out"/generic_table_*.md
  one() {  # program, arguments
    CELER_CUDA_ARCH="$arch" "$build/$@" --table "$out/generic_table_${arch:-native}.md" || { echo "failed: $*"; failed=1; }
  }
  : > "$text"
  for name in celer_cuda_bench_generic:80 celer_cuda_bench_generic:86 bench/celer_cuda_bench:; do
    arch="${name#*:}" program="${name%:*}"
    {
      echo "=== $program, as ${arch:-itself}"
      one "$program" --model llama-2-7b,llama-3.1-8b --weights bf16,int8,int4-g128 --repeat 3
      if [ "$arch" != 86 ]; then
        one "$program" --model llama-3.1-8b --weights bf16 --prompt 512 --tokens 40 --chunk 8192 --batch 16,64,128 --repeat 1
        one "$program" --model llama-3.1-8b --weights int4-g128 --prompt 512 --tokens 40 --chunk 8192 --batch 8,16,64 --repeat 1
        one "$program" --model llama-3.1-8b --weights bf16 --prompt 512,2048 --tokens 2 --chunk 2048 --repeat 2
        one "$program" --model llama-3.1-8b --weights bf16 --prompt 512,2048 --tokens 2 --chunk 2048 --repeat 2 --no-rows
        one "$program" --model qwen3-30b-a3b --weights int4-g128 --tokens 32 --batch 1,16 --repeat 1
      fi
    } > >(tee -a "$text") 2>&1
  done
  tail -n +1 "$out"/generic_table_*.md
}

# generic_check [-tests | -bench]
generic_check() {
  nvidia-smi --query-gpu=name --format=csv,noheader
  CELER_CUDA_ARCH=80 "$build/celer_generic" kernels | tail -n 8 | tee "$out/generic_kernels.txt"
  if [ "$1" != -bench ]; then
    generic_tests 80
    generic_tests 86
    if command -v compute-sanitizer > /dev/null; then
      CELER_CUDA_ARCH=80 compute-sanitizer --tool memcheck --error-exitcode 1 "$build/celer_kernels_test_generic" \
        --gtest_filter='CudaQkv*:CudaWgmmaJoin.QkvIs*:CudaNorm*' > "$out/generic_sanitizer.txt" 2>&1 ||
        { tail -n 20 "$out/generic_sanitizer.txt"; echo "memory checker: generic kernels"; failed=1; }
    fi
  fi
  if [ "$1" != -tests ]; then generic_bench; fi
}
