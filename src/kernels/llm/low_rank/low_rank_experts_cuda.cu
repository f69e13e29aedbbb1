#include "kernels/llm/low_rank/low_rank_experts_cuda.h"

#include "kernels/llm/low_rank/low_rank_device.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"

namespace celer::cuda {
namespace low_rank {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kJobSlots = kGroupedTokens;  // of a job at most
static_assert(kMaxMatvecTokens <= kJobSlots);

// A warp takes one job after the other. The thread of a slot that has no other one of its adapters among the eight in
// front, or eight or a multiple of that, opens a tile and fills it with those that follow.
__global__ void __launch_bounds__(kThreads) SlotTilesKernel(const __grid_constant__ LowRankSlotsArgs a) {
  __shared__ int tile_of[kWarps][kJobSlots];
  __shared__ int2 kind[kWarps][kJobSlots];  // which adapters
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int jobs = a.slots.counts[0];
  for (int j = static_cast<int>(blockIdx.x) * kWarps + warp; j < jobs;
       j += static_cast<int>(gridDim.x) * kWarps) {
    const ExpertJob job = a.slots.jobs[j];
    for (int i = lane; i < job.count; i += 32) {
      const int tile = a.tile_of[a.slots.row[job.begin + i]];
      tile_of[warp][i] = tile;
      kind[warp][i] = {a.tokens.tiles[tile].first_use, a.tokens.tiles[tile].uses};
    }
    __syncwarp();
    const auto alike = [&](int i, int k) {
      return kind[warp][i].x == kind[warp][k].x && kind[warp][i].y == kind[warp][k].y;
    };
    for (int i = lane; i < job.count; i += 32) {
      int before = 0;
      for (int k = 0; k < i; ++k) before += alike(i, k) ? 1 : 0;
      if (before % kTile != 0) continue;
      LowRankTile tile = a.tokens.tiles[tile_of[warp][i]];
      tile.expert = job.expert;
      tile.count = 0;
      for (int k = i; k < job.count && tile.count < kTile; ++k)
        if (alike(i, k)) tile.rows[static_cast<size_t>(tile.count++)] = job.begin + k;
      a.tiles[atomicAdd(a.tile_count, 1)] = tile;
    }
    __syncwarp();
  }
}

// Grid: rows. kWide: by 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const T* x, const int32_t* rows, int64_t units, T* out) {
  LetNextStart();
  WaitForPrevious();
  const T* const from = x + __ldcg(rows + blockIdx.x) * units;
  T* const to = out + blockIdx.x * units;
  for (int64_t i = threadIdx.x; i < units; i += kThreads) to[i] = __ldcg(from + i);
}

// Grid: slots.
__global__ void __launch_bounds__(kThreads)
    ActivateSlotsKernel(const __grid_constant__ LowRankActivateSlotsArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  auto* const narrow = static_cast<__nv_bfloat16*>(a.out_bf16);
  for (int col = static_cast<int>(threadIdx.x); col < a.cols; col += kThreads) {
    const int64_t at = row * a.cols + col;
    const float value = matvec::ActivateMul(a.activation, a.limit, __ldcg(a.gate + at), __ldcg(a.up + at));
    a.out[at] = value;
    if (narrow) narrow[row * a.bf16_stride + col] = __float2bfloat16_rn(value);
  }
}

}  // namespace
}  // namespace low_rank

using namespace low_rank;

cudaError_t LaunchLowRankSlots(const LowRankSlotsArgs& args, cudaStream_t stream) {
  if (const cudaError_t code = cudaMemsetAsync(args.tile_count, 0, sizeof(int32_t), stream);
      code != cudaSuccess || args.count == 0)
    return code;
  constexpr int kMostBlocks = 1024;
  return LaunchWhenDone(
      SlotTilesKernel, dim3(static_cast<unsigned>(std::min((args.count + kWarps - 1) / kWarps, kMostBlocks))),
      dim3(kThreads), stream, args);
}

cudaError_t LaunchGatherRows(const void* x, const int32_t* rows, int count, int64_t row_bytes, void* out,
                             cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(count)), block(kThreads);
  if (row_bytes % 16 == 0)
    return Launch(GatherKernel<uint4>, grid, block, 0, stream, static_cast<const uint4*>(x), rows,
                  row_bytes / 16, static_cast<uint4*>(out));
  return Launch(GatherKernel<uint32_t>, grid, block, 0, stream, static_cast<const uint32_t*>(x), rows,
                row_bytes / 4, static_cast<uint32_t*>(out));
}

cudaError_t LaunchLowRankActivateSlots(const LowRankActivateSlotsArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  return Launch(ActivateSlotsKernel, dim3(static_cast<unsigned>(args.count)), dim3(kThreads), 0, stream,
                args);
}

}  // namespace celer::cuda
