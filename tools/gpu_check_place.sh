# Read by tools/gpu_check.sh, with $build, $out and $failed: layers on a GPU and on the CPU (docs/placement.md). Models are
# written by celer synth: their text is noise, their speed that of the real ones.

place_tests() {
  "$build/src/models/celer_models_test" --gtest_brief=1 --gtest_filter='CudaCrossing*' 2>&1 | tail -n 8 || failed=1
  "$build/src/weights/celer_weights_test" --gtest_brief=1 --gtest_filter='CudaWeightFeed*:DeviceWeights*:-*ProductsAgree*' 2>&1 | tail -n 8 || failed=1
  timeout 150 "$build/tests/celer_cuda_test" --gtest_brief=1 --gtest_filter='CudaPlaced*' 2>&1 | tee "$out/place_tests.txt" | tail -n 25 || failed=1
  "$build/tests/celer_golden_test" --gtest_brief=1 --gtest_filter='Placed*:Devices/RunnerTest*' 2>&1 | tail -n 5 || failed=1
}

place_bench() {
  local folder="$out/place_models" text="$out/place.txt"
  mkdir -p "$folder"
  [ -e "$folder/8b.gguf" ] || "$build/celer" synth llama-3.1-8b --weights q4_0 -o "$folder/8b.gguf"
  [ -e "$folder/30b.gguf" ] || "$build/celer" synth qwen3-30b-a3b --weights q4_0 -o "$folder/30b.gguf"
  export CELER_CACHE="$out/cache"
  "$build/celer" probe --device all | tee "$out/place_probe.txt"
  one() {  # what, arguments of celer bench
    echo "=== $1"
    shift
    timeout 60 "$build/celer" bench --prompt 128 --tokens 32 --repeat 3 --threads 16 "$@" || { echo "failed: $*"; failed=1; }
  }
  {
    one '8B, all on the GPU' "$folder/8b.gguf" --device cuda
    one '8B, 4 GiB of the GPU' "$folder/8b.gguf" --gpu-memory 4GiB
    one '8B, half of the layers' "$folder/8b.gguf" --gpu-layers 16
    one '8B, two decoders on one GPU' "$folder/8b.gguf" --device cuda:0,cuda:0 --split 1,1
    one '8B, on the CPU' "$folder/8b.gguf" --device cpu
    one '30B, experts on the CPU' "$folder/30b.gguf" --device cuda --cpu-experts all
    one '30B, experts of every second layer on the CPU' "$folder/30b.gguf" --device cuda --place 'blk\.[0-9]*[02468]\.ffn_.*_exps=cpu'
    one '30B, 12 GiB of the GPU' "$folder/30b.gguf" --gpu-memory 12GiB
    # Prompts with the weights sent, and computed on the CPU.
    one '8B, half of the layers, 512 tokens sent' "$folder/8b.gguf" --gpu-layers 16 --prompt 512 --tokens 4 --stream-prompts 32
    one '8B, half of the layers, 512 tokens not sent' "$folder/8b.gguf" --gpu-layers 16 --prompt 512 --tokens 4 --stream-prompts off --repeat 1
    one '30B, experts on the CPU, 512 tokens sent' "$folder/30b.gguf" --device cuda --cpu-experts all --prompt 512 --tokens 4 --stream-prompts 32
    one '30B, experts on the CPU, 512 tokens not sent' "$folder/30b.gguf" --device cuda --cpu-experts all --prompt 512 --tokens 4 --stream-prompts off --repeat 1
  } > >(tee "$text") 2>&1
  echo '=== predicted'
  "$build/celer" limits --brief --model llama-3.1-8b --machine this --weights-bits 4.5 --context 128 --gpu-layers 16 --host this
  "$build/celer" limits --brief --model qwen3-30b-a3b --machine this --weights-bits 4.5 --context 128 --cpu-experts all --host this
}

place_check() {
  place_tests
  place_bench
}
