#!/usr/bin/env bash
# ResNet-50 and MobileNet-v2 in celer and in ONNX Runtime, in the same run, on a machine without a network.
#   tools/graph_x86_bench.sh FOLDER [threads, 4] [runs, 50] [build folder, build]
# FOLDER has resnet50.onnx and mobilenet_v2.onnx, or either as .onnx.xz. python3 has numpy and onnxruntime.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: tools/graph_x86_bench.sh FOLDER [threads] [runs] [build folder]}"
threads="${2:-4}" runs="${3:-50}" build="${4:-build}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ ! -f "$build/CMakeCache.txt" ]; then
  generator=()
  command -v ninja > /dev/null && generator=(-G Ninja)
  text=ON
  pkg-config --exists libpcre2-8 2> /dev/null || text=OFF
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCELER_CUDA=OFF -DCELER_TEXT=$text > "$work/cmake.log" ||
    { cat "$work/cmake.log"; exit 1; }
fi
cmake --build "$build" -j "$(nproc)" --target celer_graph_timer > "$work/build.log" || { tail -n 40 "$work/build.log"; exit 1; }

python3 - "$folder" "$work" <<'PYTHON'
import lzma, pathlib, shutil, sys
import numpy as np
given, work = map(pathlib.Path, sys.argv[1:])
for name in ("resnet50", "mobilenet_v2"):
    plain, packed = given / f"{name}.onnx", given / f"{name}.onnx.xz"
    if plain.exists():
        shutil.copy(plain, work)
    elif packed.exists():
        with lzma.open(packed) as file:
            (work / f"{name}.onnx").write_bytes(file.read())
    else:
        sys.exit(f"{given} has neither {plain.name} nor {packed.name}")
    np.save(work / f"{name}.x0.npy", np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32))
PYTHON

grep -m 1 'model name' /proc/cpuinfo || uname -m
python3 -c 'import onnxruntime; print("onnxruntime", onnxruntime.__version__)'
for count in 1 "$threads"; do
  python3 bench/peers/bench_graphs.py --celer "$build/celer" --networks "$work" --python "$(command -v python3)" \
    --only resnet50 mobilenet_v2 --peers onnxruntime --threads "$count" --runs "$runs"
done
