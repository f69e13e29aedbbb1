# Read by tools/gpu_check.sh, with $build, $out, $generator, $twin and $text: the Python package on a GPU, out of the module that
# is built here for this python3.
python_check() {
  local site model failed=0
  site="$PWD/$build/site" model=/dev/shm/llama-3.1-8b.gguf
  export PYTHONPATH=/opt/celer/site
  local settings=("-DPython_EXECUTABLE=$(command -v python3)")
  python3 -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    settings+=(-DPython_INCLUDE_DIR=/opt/celer/include)
  cmake -S . -B "$build" "${generator[@]}" -DCELER_CUDA=ON -DCELER_TEXT=ON -DCELER_WERROR=OFF -DCELER_PYTHON=ON "${twin[@]}" "${settings[@]}"
  cmake --build "$build" -j "$(nproc)" --target celer _celer > "$out/build.log" || { tail -n 40 "$out/build.log"; return 1; }
  mkdir -p "$site" && cp -r python/celer "$site/" && cp "$build"/python/_celer*.so "$site/celer/"
  export PYTHONPATH="$site:$PYTHONPATH" CELER_CACHE="$out/cache"
  python3 tests/python/cuda_test.py || failed=1
  "$build/celer" synth llama-3.1-8b --weights bf16 --force -o "$model" || return 1
  echo "Llama 3.1 8B, bf16, random weights; 64 prompts of about 10 tokens, 256 tokens of each:"
  python3 bench/peers/bench_python.py "$build/celer" batch "$model" --device cuda --tokens 256 --runs 5 --threads 8 | tee "$out/python.txt" || failed=1
  rm -f "$model"
  return "$failed"
}
