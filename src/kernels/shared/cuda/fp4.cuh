// fp4 (e2m1) codes, eight to a word in the order of their columns: 0, .5, 1, 1.5, 2, 3, 4 and 6, and a sign above.
//
// A byte permutation looks codes up: the lower three bits of a selector choose among eight bytes, and the fourth, a
// code's sign, spreads the upper bit of that byte, which is 0 here. So the table of positive values gives nothing
// for negative codes, and the other way round.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace celer::cuda::fp4 {

__device__ __forceinline__ uint32_t Permuted(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}

// Twice the values plus kOffset, in bytes: columns 0 to 3 and 4 to 7.
constexpr int kOffset = 12;
struct Bytes {
  uint32_t low, high;
};
__device__ __forceinline__ Bytes BytesOf(uint32_t word) {
  const auto look = [](uint32_t codes, uint32_t flipped) {
    return Permuted(0x0f0e0d0cu, 0x18141210u, codes) | Permuted(0x090a0b0cu, 0x00040608u, flipped);
  };
  const uint32_t flipped = word ^ 0x88888888u;
  return {look(word, flipped), look(word >> 16, flipped >> 16)};
}

// 2^(exponent - 127); 0 instead of 2^-127.
__device__ __forceinline__ float ScaleOf(uint32_t exponent) {
  return __uint_as_float(exponent << 23);
}
__device__ __forceinline__ uint32_t LoadExponent(uint32_t shared) {
  uint32_t out;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(out) : "r"(shared));
  return out;
}

// Eight codes times a scale, as pairs of bf16, which hold them: 0x43 above a byte makes 128 plus the byte.
struct PairScale {
  __nv_bfloat162 half, offset;  // of the scale, and of what is too much

  __device__ __forceinline__ explicit PairScale(uint32_t exponent) {
    const uint32_t bits = (max(exponent, 1u) - 1) << 7, pair = bits | bits << 16;
    constexpr uint32_t kTooMuch = 0xc30cc30c;  // -(128 + kOffset)
    half = reinterpret_cast<const __nv_bfloat162&>(pair);
    offset = __hmul2(half, reinterpret_cast<const __nv_bfloat162&>(kTooMuch));
  }
};
__device__ __forceinline__ void ToPairs(uint32_t word, const PairScale& scale, uint32_t (&out)[4]) {
  const Bytes bytes = BytesOf(word);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t biased =
        __byte_perm(i < 2 ? bytes.low : bytes.high, 0x43434343u, i % 2 == 0 ? 0x4140 : 0x4342);
    const __nv_bfloat162 pair =
        __hfma2(reinterpret_cast<const __nv_bfloat162&>(biased), scale.half, scale.offset);
    out[i] = reinterpret_cast<const uint32_t&>(pair);
  }
}

// One code.
__device__ __forceinline__ float ValueOf(int code) {
  const auto bytes = BytesOf(static_cast<uint32_t>(code));
  return 0.5f * static_cast<float>(static_cast<int>(bytes.low & 255) - kOffset);
}

}  // namespace celer::cuda::fp4
