// Which experts a token goes to, on the device.
#pragma once

#include <climits>

#include "kernels/moe/moe_cuda.h"

namespace celer::cuda {

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}

// By one warp: the top experts of a token and their weights, as RouteToken() in moe.h: by logit, lower index
// first among equals. `logits` are in shared memory and lose those that were taken.
__device__ __forceinline__ void ChooseExperts(float* logits, int experts, int top, bool normalize, int lane,
                                              int32_t* expert_of, float* weight_of) {
  float most = -INFINITY;
  for (int e = lane; e < experts; e += 32) most = fmaxf(most, logits[e]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
  float total = 0;
  for (int e = lane; e < experts; e += 32) total += expf(logits[e] - most);
  total = WarpSum(total);

  float chosen = 0, weights[kMaxTopExperts / 32] = {};  // rank k is with lane k % 32
  for (int k = 0; k < top; ++k) {
    float best = -INFINITY;
    int at = INT_MAX;
    for (int e = lane; e < experts; e += 32) {
      const float v = logits[e];
      if (v == v && (v > best || (v == best && e < at))) best = v, at = e;  // NaN: taken
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, i);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, i);
      if (other > best || (other == best && other_at < at)) best = other, at = other_at;
    }
    if (at == INT_MAX) at = k;  // logits that are no numbers
    const float weight = expf(best - most) / total;
    chosen += weight;
    if (k % 32 == lane) weights[k / 32] = weight;
    if (lane == 0) {
      expert_of[k] = at;
      logits[at] = __int_as_float(0x7fc00000);
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < kMaxTopExperts / 32; ++j)
    if (j * 32 + lane < top) weight_of[j * 32 + lane] = normalize ? weights[j] / chosen : weights[j];
}

}  // namespace celer::cuda
