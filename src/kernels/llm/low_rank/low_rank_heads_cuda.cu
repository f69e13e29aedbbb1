#include "kernels/llm/low_rank/low_rank_heads_cuda.h"

#include "kernels/llm/low_rank/low_rank_device.cuh"

namespace celer::cuda {
namespace low_rank {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kChunk = 16;  // ranks at once

// What one rank of a head reads, or gives.
struct RankRow {
  const void* from;
  LowRankType type;
  int64_t at;
  int width;
};
__device__ __forceinline__ RankRow LatentRow(const LowRankHeadsArgs& a, const DeviceTerm& term, int rank) {
  return {term.a, term.a_type, static_cast<int64_t>(rank) * term.a_stride, a.kv_rank};
}
__device__ __forceinline__ RankRow HeadRow(const LowRankHeadsArgs& a, const DeviceTerm& term, int rank,
                                           int head) {
  const int64_t row = static_cast<int64_t>(head) * (a.nope_dim + a.value_dim) + (a.keys ? 0 : a.nope_dim);
  return {term.b, term.b_type, static_cast<int64_t>(rank) * term.b_stride + row,
          a.keys ? a.nope_dim : a.value_dim};
}

// Grid: (heads, tiles in turns).
__global__ void __launch_bounds__(kThreads) HeadTermsKernel(const __grid_constant__ LowRankHeadsArgs a) {
  __shared__ float low[kChunk][kTile];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x), tiles = *a.plan.tile_count;
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    // Of the tile's t-th row; none, if it is not among those asked for.
    const auto mine = [&](int t) {
      return t < tile.count && tile.rows[t] >= a.first && tile.rows[t] < a.first + a.count;
    };
    for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
      const DeviceUse& use = a.plan.uses[u];
      const DeviceTerm& term = a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + a.place];
      for (int begin = 0; begin < term.rank; begin += kChunk) {
        const int n = min(kChunk, term.rank - begin);
        __syncthreads();  // what was there before has been read
        for (int job = warp; job < n * kTile; job += kWarps) {
          const int r = job / kTile, t = job % kTile;
          float sum = 0;
          if (mine(t)) {
            const RankRow row = a.keys ? HeadRow(a, term, begin + r, head) : LatentRow(a, term, begin + r);
            const float* const x = a.x + (tile.rows[t] - a.first) * a.x_row + head * a.x_head;
            for (int c = lane; c < row.width; c += 32)
              sum = fmaf(At(row.from, row.type, row.at + c), x[c], sum);
          }
#pragma unroll
          for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
          if (lane == 0) low[r][t] = sum;
        }
        __syncthreads();
        const int width = a.keys ? a.kv_rank : a.value_dim;
        for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) {
          float change[kTile] = {};
          for (int r = 0; r < n; ++r) {
            const RankRow row = a.keys ? LatentRow(a, term, begin + r) : HeadRow(a, term, begin + r, head);
            const float by = At(row.from, row.type, row.at + c);
#pragma unroll
            for (int t = 0; t < kTile; ++t) change[t] = fmaf(low[r][t], by, change[t]);
          }
#pragma unroll
          for (int t = 0; t < kTile; ++t) {
            if (!mine(t)) continue;
            float* const to = a.out + (tile.rows[t] - a.first) * a.out_row + head * a.out_head + c;
            *to = fmaf(use.scale, change[t], *to);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace low_rank

cudaError_t LaunchLowRankHeads(const LowRankHeadsArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  return low_rank::LaunchWhenDone(low_rank::HeadTermsKernel,
                                  dim3(static_cast<unsigned>(args.heads), low_rank::TileBlocks(args.rows)),
                                  dim3(low_rank::kThreads), stream, args);
}

}  // namespace celer::cuda
