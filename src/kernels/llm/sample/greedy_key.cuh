// The sort key of greedy sampling, and what is done with the winner.
#pragma once

#include "kernels/llm/sample/greedy_cuda.h"

namespace celer::cuda {

// Larger logit first, tie-break by the smaller token; NaN before all, so that one is seen in the winner.
// Never zero, and bit 31 is set.
__device__ __forceinline__ uint64_t GreedyKey(float logit, int token) {
  uint32_t bits = __float_as_uint(logit);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (isnan(logit)) bits = 0xffffffffu;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

// The largest of a warp's keys.
__device__ __forceinline__ uint64_t WarpBest(uint64_t best) {
  for (int apart = 16; apart > 0; apart /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, best, apart);
    best = other > best ? other : best;
  }
  return best;
}

// The winner's token, or kNoToken if its logit is not finite.
__device__ __forceinline__ int GreedyToken(uint64_t winner) {
  constexpr uint32_t kLowest = 0x00800000u, kInfinity = 0xff800000u;  // of keys: -FLT_MAX, +infinity
  const bool finite = static_cast<uint32_t>(winner >> 32) - kLowest < kInfinity - kLowest;
  return finite ? static_cast<int>(0xffffffffu - static_cast<uint32_t>(winner)) : kNoToken;
}

// `position`: to.positions[row].
__device__ __forceinline__ void TakeGreedy(const GreedyTarget& to, int row, int position, uint64_t winner) {
  const int token = GreedyToken(winner);
  to.tokens[row] = max(token, 0);
  to.positions[row] = position + 1;
  to.host_tokens[position % kHostSlots * to.host_stride + row] = token;
}

}  // namespace celer::cuda
