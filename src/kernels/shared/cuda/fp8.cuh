// fp8 (e4m3) weights as bf16, four at a time: a word of a kFp8 matrix has columns 0, 2, 1, 3 of four
// (device_matrix.h), so that two shifts bring each pair of neighbours into the halves of a register.
//
// A code's bits, moved to where bf16 has sign, exponent and significand, are its value times 2^-120; of zero
// and of the subnormal codes, too, because products of bf16 pairs keep subnormals.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace celer::cuda::fp8 {

using Pair = __nv_bfloat162;
__device__ __forceinline__ Pair AsPair(uint32_t bits) {
  return reinterpret_cast<const Pair&>(bits);
}
__device__ __forceinline__ uint32_t PairBits(const Pair& pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// Columns 2i and 2i + 1 of a word, times 2^-120.
__device__ __forceinline__ Pair SmallPair(uint32_t word, int i) {
  return i == 0 ? AsPair((word << 8 & 0x80008000u) | (word << 4 & 0x07f007f0u))
                : AsPair((word & 0x80008000u) | (word >> 4 & 0x07f007f0u));
}
// As they are: every code is a bf16 number.
__device__ __forceinline__ uint32_t PairOf(uint32_t word, int i) {
  return PairBits(__hmul2(SmallPair(word, i), AsPair(0x7b807b80u)));  // 2^120
}

// A scale of at most kFp8MostScale (formats/weight_format.h), times 2^120, as the sum of two bf16 numbers.
struct Scale {
  Pair high, low;

  __device__ __forceinline__ explicit Scale(float scale) {
    scale *= 0x1p120f;
    const __nv_bfloat16 first = __float2bfloat16_rn(scale);
    high = __bfloat162bfloat162(first);
    low = __float2bfloat162_rn(scale - __bfloat162float(first));
  }
};
// Times a scale, rounded once but for 2^-17 of the value.
__device__ __forceinline__ uint32_t ScaledPair(uint32_t word, int i, const Scale& scale) {
  const Pair small = SmallPair(word, i);
  return PairBits(__hfma2(small, scale.high, __hmul2(small, scale.low)));
}

}  // namespace celer::cuda::fp8
