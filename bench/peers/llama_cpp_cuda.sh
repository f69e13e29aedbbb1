#!/usr/bin/env bash
# llama.cpp with CUDA beside celer, with layers and with experts on the CPU (docs/placement.md), on a machine that reaches no
# package index. Its source is that of llama-cpp-python on PyPI, cut to what one GPU and these files need: no flash attention,
# and products of quantized matrices of few types.
#   bench/peers/llama_cpp_cuda.sh --pack FILE.tar.xz SDIST  of llama_cpp_python-0.3.36.tar.gz, PyPI's file: what is needed, 1.2 MB
#   bench/peers/llama_cpp_cuda.sh FILE.tar.xz CELER FOLDER  there: builds it in build-llama (2 minutes on 16 cores), and runs both by
#                                                           turns on 8b.gguf and 30b.gguf of FOLDER (tools/gpu_check_place.sh)
# Variables: THREADS (16), ARCH (90), REPEAT (3).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

pack() {
  local out sdist
  out="$(realpath "$1")" sdist="$(realpath "$2")"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  tar -C "$work" --strip-components=3 --wildcards -xzf "$sdist" '*/vendor/llama.cpp/*'
  cd "$work"
  local cuda=ggml/src/ggml-cuda file
  # Without flash attention nothing of these is called but the functions that say so.
  for file in $cuda/fattn*.cu $cuda/template-instances/fattn*.cu; do : > "$file"; done
  echo '#include "fattn.cuh"' > $cuda/fattn.cu
  cat >> $cuda/fattn.cu << 'END'
void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context &, ggml_tensor *) { GGML_ABORT("no flash attention in this build"); }
bool ggml_cuda_flash_attn_ext_supported(int, const ggml_tensor *) { return false; }
size_t ggml_cuda_flash_attn_ext_get_alloc_size(int, const ggml_tensor *) { return 0; }
END
  : > vendor/CMakeLists.txt  # what its tools need
  # Types that celer synth writes, and those of the tables beside them.
  local kept='Q4_0|Q8_0|Q4_K|Q6_K'
  for file in $cuda/template-instances/mmq-instance-*.cu; do
    [[ "${file^^}" =~ -($kept)\.CU$ ]] || rm "$file"
  done
  local body='(ggml_backend_cuda_context \&, const mmq_args \&, cudaStream_t) { GGML_ABORT("not in this build"); }'
  sed -E -i "/^extern DECL_MMQ_CASE\\(GGML_TYPE_($kept)\\)/! {
    s/^extern DECL_MMQ_CASE\\((GGML_TYPE_[A-Z0-9_]+)\\);/template <> inline void mul_mat_q_case<\\1>$body/
    s/^extern DECL_MMQ_CASE_W4A4\\((GGML_TYPE_[A-Z0-9_]+)\\);/template <> inline void mul_mat_q_case<\\1, GGML_PREC_Q4>$body/
  }" $cuda/mmq.cuh
  tar -cJf "$out" CMakeLists.txt LICENSE cmake include src vendor/CMakeLists.txt ggml/CMakeLists.txt ggml/cmake ggml/include \
    $(ls -d ggml/src/*.c ggml/src/*.cpp ggml/src/*.h ggml/src/*.in ggml/src/CMakeLists.txt) ggml/src/ggml-cpu $cuda
  ls -l "$out" | awk '{ printf "%s  %.1f MB\n", $NF, $5 / 1e6 }'
}

build() {
  local source="$1" to="$2"
  [ -e "$to/src/CMakeLists.txt" ] || { mkdir -p "$to/src"; tar -C "$to/src" -xf "$source"; }
  cmake -S "$to/src" -B "$to/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_CUDA="${CUDA:-ON}" -DGGML_CUDA_FA=OFF -DGGML_CUDA_NCCL=OFF \
    -DGGML_NATIVE=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCH:-90}" -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF > "$to/cmake.log"
  cmake --build "$to/build" -j "$(nproc)" --target llama > "$to/build.log" 2>&1 || { tail -n 30 "$to/build.log"; return 1; }
  local libraries=() cuda=()
  while IFS= read -r one; do libraries+=("$one"); done < <(find "$to/build" -name '*.a')
  [ "${CUDA:-ON}" = OFF ] || cuda=(-L/usr/local/cuda/lib64 -L/usr/local/cuda/lib64/stubs -lcudart -lcublas -lcuda)
  c++ -std=c++20 -O2 -I"$to/src/include" -I"$to/src/ggml/include" "$here/llama_cpp_bench.cc" -o "$to/llama_cpp_bench" \
    -Wl,--start-group "${libraries[@]}" -Wl,--end-group "${cuda[@]}" -fopenmp -lpthread -ldl
}

peer() {  # what, file, and variables before it
  local what="$1" file="$2" threads="${THREADS:-16}" repeat="${REPEAT:-3}"
  shift 2
  local one
  for one in "prefill 512 1 $repeat 1" "decode 128 1 32 $repeat 1"; do
    # shellcheck disable=SC2086
    env "$@" "$to/llama_cpp_bench" "$file" "$threads" 0 $one 2> "$to/peer.log" |
      python3 -c 'import json, statistics, sys
r = json.load(sys.stdin)
speed = r["tokens"] / statistics.median(r["seconds"])
print(f"llama.cpp  {sys.argv[1]:42} {sys.argv[2]:8} {speed:9.1f} tok/s")' "$what" "${one%% *}" ||
      { tail -n 5 "$to/peer.log"; echo "llama.cpp: $what $one failed"; }
  done
}

own() {  # what, file, arguments
  local what="$1" file="$2"
  shift 2
  "$celer" bench "$file" --prompt 512 --tokens 32 --repeat "${REPEAT:-3}" --threads "${THREADS:-16}" "$@" | sed "s/^/celer      $what | /" || echo "celer: $what failed"
}

if [ "${1:-}" = --pack ]; then
  pack "$2" "$3"
  exit
fi
to="${TO:-build-llama}"
build "$1" "$to"
celer="${2:-}"
[ -n "$celer" ] || exit 0
models="$3"
for turn in 1 2; do
  echo "=== turn $turn"
  own '8B, 16 layers on the GPU' "$models/8b.gguf" --gpu-layers 16
  peer '8B, 16 layers on the GPU' "$models/8b.gguf" LLAMA_GPU_LAYERS=17  # the output counts as one there
  own '30B, experts on the CPU' "$models/30b.gguf" --device cuda --cpu-experts all
  peer '30B, experts on the CPU' "$models/30b.gguf" LLAMA_GPU_LAYERS=999 LLAMA_CPU_EXPERTS=1
done
