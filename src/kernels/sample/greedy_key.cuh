// What is compared where the most likely token is chosen, and what is done with it then.
#pragma once

#include "kernels/sample/greedy_cuda.h"

namespace celer::cuda {

// Larger logit first, then the smaller token; NaN last. Never zero, and bit 31 is set.
__device__ __forceinline__ uint64_t GreedyKey(float logit, int token) {
  uint32_t bits = __float_as_uint(logit);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (isnan(logit)) bits = 0;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

// The largest of a warp's keys.
__device__ __forceinline__ uint64_t WarpBest(uint64_t best) {
  for (int x = 16; x > 0; x /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, best, x);
    best = other > best ? other : best;
  }
  return best;
}

__device__ __forceinline__ int GreedyToken(uint64_t winner) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(winner));
}

// `position`: to.positions[row].
__device__ __forceinline__ void TakeGreedy(const GreedyTarget& to, int row, int position, uint64_t winner) {
  const int token = GreedyToken(winner);
  to.tokens[row] = token;
  to.positions[row] = position + 1;
  to.host_tokens[position % kHostSlots * to.host_stride + row] = token;
}

}  // namespace celer::cuda
