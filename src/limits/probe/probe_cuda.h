// The kernels of the GPU probe. Each launcher queues one kernel and returns the launch's error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace celer::probe {

// A way to read: `unroll` 16-byte loads in flight per thread; either as many blocks as fit on the GPU at
// once, each reading many tiles, or one block per tile.
struct CudaReadConfig {
  int unroll;   // 4, 8 or 16
  int threads;  // per block, a power of two; at most 4096 / unroll
  bool persistent;
};

// No tile of any config is larger; `bytes` below is a multiple of it.
constexpr size_t kCudaReadUnit = size_t{16} * 4096;

// Xors all 32-bit words of `data` into *sink.
cudaError_t LaunchProbeRead(const CudaReadConfig& config, const void* data, size_t bytes, uint32_t* sink,
                            int multiprocessors, cudaStream_t stream);

enum class CudaFill { kF32, kF16, kBf16, kInt8, kFp8E4m3 };

// About normally distributed, standard deviation 1 (int8: 40). Power, and with it the clock, depends on the
// data: zeros would show a rate that no real weights reach.
cudaError_t LaunchProbeFill(CudaFill type, void* data, size_t elements, uint32_t seed, cudaStream_t stream);

// A few KB of activations to the host and back, `rounds` times: the kernel writes `data` in pinned memory, counts *handed up,
// waits until *answered is as large, and reads `data`. Both counts begin at 0.
constexpr int kCrossingFloats = 2048;
struct CrossingProbe {
  float* data = nullptr;  // [kCrossingFloats]
  uint32_t *handed = nullptr, *answered = nullptr;
  float* sink = nullptr;  // [kCrossingFloats], on the GPU
};
cudaError_t LaunchProbeCrossing(const CrossingProbe& probe, int rounds, cudaStream_t stream);

}  // namespace celer::probe
