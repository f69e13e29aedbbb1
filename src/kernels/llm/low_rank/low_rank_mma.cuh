// What kernels of low rank on the tensor cores share.
#pragma once

#include "kernels/llm/low_rank/low_rank_device.cuh"

namespace celer::cuda::low_rank {

constexpr int kMmaRanks = kLowRankStep;  // of a product, with eight tokens

// Two numbers as bf16, and what that leaves of them: of f16 nothing.
struct Pairs {
  uint32_t high, low;
};
__device__ __forceinline__ Pairs SplitPair(float a, float b) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(a, b);
  const __nv_bfloat162 low = __floats2bfloat162_rn(a - __low2float(high), b - __high2float(high));
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

// Of two numbers of 16 bits.
template <bool kHalf>
__device__ __forceinline__ float2 Unpack2(uint32_t bits) {
  if constexpr (kHalf) return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

}  // namespace celer::cuda::low_rank
