// What the kernels behind low_rank_cuda.h share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/llm/low_rank/low_rank_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::low_rank {

constexpr int kTile = kLowRankTile;
constexpr int kRowsEach = 4;  // of a matrix, that a thread has in the expansion on the tensor cores' side

__device__ __forceinline__ float At(const void* from, LowRankType type, int64_t i) {
  switch (type) {
    case LowRankType::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
    case LowRankType::kF16:
      return __half2float(static_cast<const __half*>(from)[i]);
    case LowRankType::kF32:
      break;
  }
  return static_cast<const float*>(from)[i];
}

// Which use of a mix has this place among the ranks of all; -1: none, they are rounded up.
__device__ __forceinline__ const DeviceUse& UseAt(const LowRankPlan& plan, const LowRankTile& tile, int at) {
  int use = tile.first_use;
  while (use + 1 < tile.first_use + tile.uses && plan.uses[use + 1].low_at <= at) ++use;
  return plan.uses[use];
}

// What a use has for a matrix of the tile's rows.
__device__ __forceinline__ const DeviceTerm& TermOf(const LowRankPlan& plan, const LowRankTile& tile,
                                                    const DeviceUse& use, const LowRankArgs::Matrix& m) {
  return plan.terms[static_cast<int64_t>(use.slot) * plan.places + m.place + tile.expert * m.expert_places];
}

// Of its rows: of a mixture, those of the tile's expert.
__device__ __forceinline__ const float* BiasOf(const LowRankTile& tile, const LowRankArgs::Matrix& m) {
  return m.bias && m.expert_places > 0 ? m.bias + static_cast<int64_t>(tile.expert) * m.rows : m.bias;
}

// The matrix of a block, and its first row, of a grid with blocks of `step` rows of each matrix.
struct BlockOf {
  int which = 0, first = 0;
};
__device__ __forceinline__ BlockOf FindBlock(const LowRankArgs& a, int step) {
  auto block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (which + 1 < a.count) {
    const int blocks = (a.matrices[which].rows + step - 1) / step;
    if (block < blocks) break;
    block -= blocks;
    ++which;
  }
  return {which, block * step};
}

// Tiles of a batch have no more blocks than this: further ones take their turn. Mixes that fill their tiles badly are few.
inline unsigned TileBlocks(int rows) {
  return static_cast<unsigned>(std::min(rows, (rows + kTile - 1) / kTile + 8));
}

inline unsigned RowBlocks(const LowRankArgs& args, int step) {
  int blocks = 0;
  for (int i = 0; i < args.count; ++i)
    blocks += (args.matrices[static_cast<size_t>(i)].rows + step - 1) / step;
  return static_cast<unsigned>(blocks);
}

// Not Launch() of launch.cuh: these kernels do not say when they need what was before.
template <class Args>
cudaError_t LaunchWhenDone(void (*kernel)(Args), dim3 grid, dim3 block, cudaStream_t stream,
                           const Args& args) {
  cudaLaunchAttribute carveout;  // that of all kernels
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &carveout;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}
// Whether rows can be read four at a time. Strides of the terms are the caller's, padded.
inline bool InFours(const LowRankArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.cols % 4 == 0 && args.x_stride % 4 == 0 && aligned(args.x) && aligned(args.norm);
}

// Whether plain tiles go to the tensor cores: by the product alone, not by the batch.
inline bool RunsPlain(const LowRankArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  bool runs = args.plain_low && args.cols % 8 == 0 && InFours(args) &&
              int64_t{PlainPieces(args.cols)} * PlainWidth(args.count) <= args.plain_room;
  for (int i = 0; i < args.count; ++i) {
    const LowRankArgs::Matrix& m = args.matrices[static_cast<size_t>(i)];
    runs = runs && m.rows % kRowsEach == 0 && m.stride % 4 == 0 && aligned(m.product) && aligned(m.bias) &&
           aligned(m.add_to);
  }
  return runs;
}

// Of the plain tiles of a product that RunsPlain() (low_rank_plain_cuda.cu).
cudaError_t LaunchPlainShrink(const LowRankArgs& args, cudaStream_t stream);
cudaError_t LaunchPlainExpand(const LowRankArgs& args, cudaStream_t stream);

}  // namespace celer::cuda::low_rank
