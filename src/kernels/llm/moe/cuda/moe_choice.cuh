// Top-k routing of a token, on the device.
#pragma once

#include <climits>

#include "kernels/llm/moe/cuda/moe_cuda.h"

namespace celer::cuda {

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

// A monotonic key of a float; 0 for NaN.
__device__ __forceinline__ uint32_t OrderOf(float v) {
  const uint32_t bits = __float_as_uint(v + 0.0f);  // one zero
  return v != v ? 0 : bits ^ (static_cast<int32_t>(bits) < 0 ? 0xffffffffu : 0x80000000u);
}

// By one warp: the top experts of a token and their weights, as RouteToken() in moe.h: by logit, tie-break by
// the lower index. `logits` are in shared memory and lose those that were taken.
__device__ __forceinline__ void ChooseExperts(float* logits, int experts, int top, bool normalize, int lane,
                                              int32_t* expert_of, float* weight_of) {
  constexpr uint32_t kAll = 0xffffffffu;
  uint32_t order = 0;  // of the best of this lane's experts, every 32nd
  int at = INT_MAX;
  const auto look = [&] {
    order = 0, at = INT_MAX;
    for (int e = lane; e < experts; e += 32) {
      const uint32_t other = OrderOf(logits[e]);
      if (other > order) order = other, at = e;
    }
  };
  const auto best = [&] {
    return __reduce_min_sync(kAll, order == __reduce_max_sync(kAll, order) ? at : INT_MAX);
  };
  look();
  const int first = best();
  const float most = first == INT_MAX ? -INFINITY : logits[first];
  float total = 0;
  if (!normalize) {
    for (int e = lane; e < experts; e += 32) total += expf(logits[e] - most);
    total = WarpSum(total);
  }
  __syncwarp();
  constexpr int kRanks = kMaxTopExperts / 32;  // of a lane: lane, lane + 32, ..
  float chosen[kRanks];
#pragma unroll
  for (float& logit : chosen) logit = -INFINITY;
  for (int k = 0; k < top; ++k) {
    const int found = best(), expert = found == INT_MAX ? k : found;  // logits that are no numbers
    if (lane == 0) expert_of[k] = expert;
    const float logit = found == INT_MAX ? -INFINITY : logits[found];
#pragma unroll
    for (int j = 0; j < kRanks; ++j)
      if (k == j * 32 + lane) chosen[j] = logit;
    __syncwarp();
    if (expert % 32 == lane) {
      logits[expert] = __int_as_float(0x7fc00000);
      look();
    }
  }
#pragma unroll
  for (float& logit : chosen) logit = expf(logit - most);
  if (normalize) {
#pragma unroll
    for (const float weight : chosen) total += weight;
    total = WarpSum(total);
  }
#pragma unroll
  for (int j = 0; j < kRanks; ++j)
    if (j * 32 + lane < top) weight_of[j * 32 + lane] = chosen[j] / total;
}

}  // namespace celer::cuda
