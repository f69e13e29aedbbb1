#include <algorithm>

#include "kernels/llm/kv_blocks/kv_blocks_cuda.h"

namespace celer::cuda {
namespace {

// Passed as kernel parameters, so that nothing has to be copied before the launch.
constexpr int kPairsAtOnce = 256;
struct Pairs {
  BlockCopy pair[kPairsAtOnce];
};

constexpr int kThreads = 256;

// Grid: (parts, pairs).
__global__ void __launch_bounds__(kThreads)
    MoveKvBlocksKernel(const __grid_constant__ MoveKvBlocksArgs a, const __grid_constant__ Pairs pairs) {
  const BlockCopy pair = pairs.pair[blockIdx.y];
  const auto at = [&](const KvBlockPlace& place, int32_t block) {
    return reinterpret_cast<uint4*>(place.base + blockIdx.x * place.part_stride + block * place.block_stride);
  };
  uint4* to = at(a.to, pair.to);
  const int64_t pieces = a.block_bytes / 16;
  if (!a.from.base) {
    for (int64_t i = threadIdx.x; i < pieces; i += kThreads) to[i] = make_uint4(0, 0, 0, 0);
    return;
  }
  const uint4* from = at(a.from, pair.from);
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < pieces; i += kThreads) to[i] = from[i];
}

}  // namespace

cudaError_t LaunchMoveKvBlocks(const MoveKvBlocksArgs& args, std::span<const BlockCopy> pairs,
                               cudaStream_t stream) {
  if (args.block_bytes % 16 != 0) return cudaErrorInvalidValue;
  for (size_t first = 0; first < pairs.size(); first += kPairsAtOnce) {
    const auto some = pairs.subspan(first, std::min<size_t>(kPairsAtOnce, pairs.size() - first));
    Pairs now = {};
    std::copy(some.begin(), some.end(), now.pair);
    // Not by Launch(): without programmatic dependent launch, as what moves must wait for the end of the
    // previous kernel.
    MoveKvBlocksKernel<<<dim3(static_cast<unsigned>(args.parts), static_cast<unsigned>(some.size())),
                         kThreads, 0, stream>>>(args, now);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace celer::cuda
