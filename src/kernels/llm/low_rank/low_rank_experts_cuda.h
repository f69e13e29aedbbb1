// Terms of experts (low_rank_cuda.h) in a mixture whose routing the device decides (kernels/llm/moe/cuda/moe_cuda.h): rows
// of its products are slots, sorted by expert.
//
//   LaunchMoeRoute -> LaunchLowRankSlots -> A x -> gather, gate, up -> B, LaunchLowRankActivateSlots -> A x -> down -> B
//
// Gate and up are apart, because terms come between them and the activation.
#pragma once

#include "kernels/llm/low_rank/low_rank_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"

namespace celer::cuda {

struct LowRankSlotsArgs {
  LowRankPlan tokens;                // of the batch
  const int32_t* tile_of = nullptr;  // [tokens]: which of its tiles a token is in
  MoePlan slots;
  int count = 0;  // of slots
  // Written: what a LowRankPlan has, with tiles of one expert each; [count] at most.
  LowRankTile* tiles = nullptr;
  int32_t* tile_count = nullptr;
};
// What comes behind it may read the jobs of `slots` before the kernel in front has ended.
cudaError_t LaunchLowRankSlots(const LowRankSlotsArgs& args, cudaStream_t stream);

// Row i of `out` is row rows[i] of x; a multiple of four bytes each.
cudaError_t LaunchGatherRows(const void* x, const int32_t* rows, int count, int64_t row_bytes, void* out,
                             cudaStream_t stream);

// act(gate) * up of the slots of a mixture.
struct LowRankActivateSlotsArgs {
  const float *gate = nullptr, *up = nullptr;  // [count, cols]
  int count = 0, cols = 0;
  DeviceActivation activation = DeviceActivation::kSilu;
  float limit = 0;           // as in gate_up_cuda.h
  float* out = nullptr;      // [count, cols]; may be gate or up
  void* out_bf16 = nullptr;  // [count, bf16_stride], of which `cols` are written; or none
  int64_t bf16_stride = 0;
};
cudaError_t LaunchLowRankActivateSlots(const LowRankActivateSlotsArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
