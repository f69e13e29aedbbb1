#!/usr/bin/env bash
# On a machine with a GPU: build, run every test, probe the CPU and the GPU, run the benches. One command, one log, and at its
# end a table: celer, limit, ratio, best peer, ratio to it. Meant to end within 540 s on 16 cores and an H200.
#   tools/gpu_check.sh [folder for the results] [all | native | generic | generic-tests | generic-bench | python | place]
# generic: the kernels of GPUs older than Hopper, on a Hopper, standing for 8.0 and 8.6 (docs/notes/cuda_generic.md); about as
# long again, so in a call of its own: `native`, then `generic`. The build is kept between them.
# python: the Python package alone, with python3: LLM.generate beside `celer batch`. What the build lacks on a machine without
# packages may lie in build-offline/packages.tar.xz (tools/offline_packages.sh).
# place: models that are larger than what may be taken of the GPU (docs/placement.md), with files that celer synth writes.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-out}"
part="${2:-all}"
build=build-gpu
mkdir -p "$out"
offline=build-offline/packages.tar.xz
[ ! -f "$offline" ] || tools/offline_packages.sh --unpack "$offline"
text=ON
pkg-config --exists libpcre2-8 2>/dev/null || text=OFF   # a workstation image may lack PCRE2
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
twin=(-DCELER_CUDA_TWIN=OFF)
case "$part" in native | python | place) ;; *) twin=(-DCELER_CUDA_TWIN=90) ;; esac
. tools/gpu_check_python.sh
if [ "$part" = python ]; then
  python_check
  exit
fi
# Another compiler than the one that CI has may warn of other things.
cmake -S . -B "$build" "${generator[@]}" -DCELER_CUDA=ON -DCELER_TEXT=$text -DCELER_WERROR=OFF "${twin[@]}"
cmake --build "$build" -j "$(nproc)" > "$out/build.log" || { tail -n 40 "$out/build.log"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
failed=0  # whatever fails, the rest runs
. tools/gpu_check_generic.sh
. tools/gpu_check_place.sh
case "$part" in
  place) place_check; exit "$failed" ;;
  generic | generic-tests | generic-bench) generic_check "${part#generic}"; exit "$failed" ;;
esac
ctest --test-dir "$build" --output-on-failure -j 8 2>&1 | tee "$out/ctest.log" | tail -n 25 || failed=1
export CELER_CACHE="$out/cache"
"$build/celer" probe --force --device all | tee "$out/probe.txt"
"$build/celer" probe --json --device all > "$out/probe.json"
"$build/celer" limits --model llama-2-7b --machine this | tee "$out/limits.txt"
"$build/celer" kernels | tee "$out/kernels.txt"
"$build/src/device/celer_device_bench" --benchmark_min_time=0.2 | tee "$out/device_bench.txt"
# The small kernel tests under the memory checker (the large ones would take hours in it), then decode and prefill
# against the limit.
if command -v compute-sanitizer > /dev/null; then
  : > "$out/sanitizer.txt"
  check() {  # program, tests
    compute-sanitizer --tool memcheck --error-exitcode 1 "$build/$1" --gtest_filter="$2" >> "$out/sanitizer.txt" 2>&1 ||
      { tail -n 20 "$out/sanitizer.txt"; echo "memory checker: $1 $2"; failed=1; }
  }
  check src/weights/celer_weights_test 'DeviceWeights*:-*ProductsAgree*'
  check src/kernels/celer_kernels_test 'CudaQkv*:CudaWgmmaJoin.QkvIs*:CudaWgmmaJoin.RowsInSixteenBits'
  check src/models/celer_models_test 'MoeCudaRoute*:Shapes/MoeCuda.*/0:Shapes/MoeCuda.*/1:Shapes/MoeCuda.*/3:Shapes/MoeCuda.*/6'
  check src/models/celer_models_test 'DecodeChoice.TakesTheFirst*:Shapes/DecodeStep.*/1:Shapes/DecodeBatch.*/1'
  check src/kernels/celer_kernels_test 'CudaCodes.GateAndUp:CudaCodes.RowsOfWeights'
  check src/quantize/llm/celer_quantize_llm_test 'CudaGptq.*:Quantize.CudaGoesOn*'
  check src/engine/celer_engine_test 'CudaSampler.SpecialLogits'
  check src/kernels/celer_kernels_test 'CudaLatent*:CudaNorm*:CudaQkvGeneral*:DeltaNetCuda*:OutputGateCuda*:LowRankCuda*'
  check tests/celer_cuda_test 'CudaGolden.LogitsAgreeWithTheCpu:CudaLora.BatchesOfSeveral*:CudaLora.LittleMemory*'
  grep -c 'ERROR SUMMARY: 0 errors' "$out/sanitizer.txt" | sed 's/$/ programs without memory errors/'
fi
# A bench that fails is said and does not keep the next from running. Rows of `table` go to the table at the end.
bench() { "$build/bench/celer_cuda_bench" "$@" || { echo "celer_cuda_bench $*: failed"; failed=1; }; }
table() { bench --table "$out/cuda_table.md" "$@"; }
rm -f "$out/cuda_table.md"
bench --model llama-2-7b,llama-3.1-8b,llama-3.2-1b > "$out/cuda_decode.txt"; cat "$out/cuda_decode.txt"
prompts=(--prompt 512,2048 --tokens 2 --chunk 2048)
{
  bench --weights bf16,int8,int4-g128 "${prompts[@]}"
  table --model llama-3.1-8b --weights bf16 "${prompts[@]}"
  table --model llama-3.1-8b --weights int8 --activations fp8 "${prompts[@]}"
} > "$out/cuda_prefill.txt"; cat "$out/cuda_prefill.txt"
# Under load: decode of many sequences at 512 tokens. Most of the time goes into their prompts, so the larger ones run once
# after the run that warms up, and their figure is the mean of its steps.
load() { table --model llama-3.1-8b --prompt 512 --tokens 40 --chunk 8192 "$@"; }
{
  load --weights bf16 --batch 8,16,64 --repeat 2
  load --weights bf16 --batch 128,256 --repeat 1
  load --weights int8,int4-g128 --batch 16,64,128 --repeat 1
  load --weights int8 --activations fp8 --batch 16,64 --repeat 2
  load --weights int8 --activations fp8 --batch 128,256 --repeat 1
  load --weights bf16 --batch 64 --repeat 1 --deterministic
  table --model llama-3.1-8b --weights bf16 --prompt 4096 --tokens 40 --batch 64 --chunk 8192 --repeat 1
  table --model qwen3-30b-a3b --weights bf16 --prompt 512 --tokens 32 --batch 1,16,64,128 --chunk 8192 --repeat 1
  # Prompts and answers together: what counts is the last column but two.
  bench --model llama-2-7b --weights bf16 --prompt 512 --tokens 128 --batch 64 --chunk 4096 --repeat 1
  bench --model llama-3.1-8b --weights bf16 --prompt 512 --tokens 128 --batch 256 --chunk 4096 --repeat 1
} > "$out/cuda_load.txt"; cat "$out/cuda_load.txt"
{
  bench --model mixtral-8x7b,qwen3-30b-a3b --weights bf16,int8,int4-g128 --tokens 64 --repeat 3
  bench --model qwen3-30b-a3b --weights int4-g128 --tokens 32 --batch 2,4,8 --repeat 3
} > "$out/cuda_moe.txt"; cat "$out/cuda_moe.txt"
# With LoRA adapters: the figure is the speed to none.
lora() { bench --model llama-3.1-8b --prompt 512 --tokens 40 --batch 64 --chunk 8192 --repeat 2 --lora 8 --rank 16 "$@"; }
{
  lora --weights bf16
  lora --weights bf16 --lora-f32
  lora --weights int8
} > "$out/cuda_lora.txt"; cat "$out/cuda_lora.txt"
# Layers that are not Llama's: strategy `general`.
{
  table --model gemma-3-12b,qwen3.5-35b-a3b,deepseek-v2-lite --weights bf16 --tokens 64 --repeat 3
  table --model gpt-oss-20b --weights stored --tokens 64 --repeat 3
} > "$out/cuda_families.txt"; cat "$out/cuda_families.txt"
# Two and four ranks on this one GPU, beside one rank: the products are no faster, so what is more is what ranks cost.
{
  CELER_RANKS_SHARE_GPU=1 bench --model llama-3.1-8b --weights bf16 --tokens 64 --repeat 3 -tp 2
  CELER_RANKS_SHARE_GPU=1 bench --model llama-3.1-8b --weights bf16 --tokens 64 --repeat 3 -tp 4
} > "$out/cuda_ranks.txt"; cat "$out/cuda_ranks.txt"
cat "$out/cuda_table.md" || failed=1
[ "$part" = native ] || generic_check ""
exit "$failed"
