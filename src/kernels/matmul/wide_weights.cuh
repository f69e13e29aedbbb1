// Weights of all formats as bf16, in the registers from which warpgroup products take them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/matmul/wide_ring.cuh"

namespace celer::cuda::wide {

// Up to eight tokens have 16 bits of activations and of weights: two bf16 of each.
template <Format F, int N>
constexpr int kWeightParts = N == 16 && F != Format::kBf16 ? 2 : 1;

// The values of eight columns of a row, from the word(s) that hold them.
__device__ __forceinline__ void FromInt8(uint32_t w0, uint32_t w1, float scale, float (&v)[8]) {
  w0 ^= 0x80808080u;
  w1 ^= 0x80808080u;
#pragma unroll
  for (int i = 0; i < 8; ++i)  // 2^23 + byte
    v[i] = (__uint_as_float(__byte_perm(i < 4 ? w0 : w1, 0x4b000000u, 0x7440 + i % 4)) - 8388736.0f) * scale;
}
__device__ __forceinline__ void FromInt4(uint32_t w, float scale, float offset, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // 128 + nibble
    const uint32_t at16 = i <= 4 ? w << (16 - 4 * i) : w >> (4 * i - 16);
    v[i] = fmaf(__uint_as_float((at16 & 0x000f0000u) | 0x43000000u), scale, offset);
  }
}

// A unit's weights of one warp's 16 rows, as the products want them: a[part][k step][4]. `low` and `high` are
// where the stage has the two eights.
template <Format F, int N>
__device__ __forceinline__ void LoadUnit(const Params& p, uint32_t low, uint32_t high, uint32_t low_scales,
                                         uint32_t high_scales, int unit, int lane,
                                         uint32_t (&a)[kWeightParts<F, N>][kUnitCols<F> / 16][4]) {
  const auto place = [&](int part, int block, int half,
                         int i) -> uint32_t& {  // pair i of a lane's 32 columns
    return a[part][block * 2 + i / 2][half + i % 2 * 2];
  };
  const auto put = [&](int block, int half, const float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = PackBf16(v[2 * i], v[2 * i + 1]);
      place(0, block, half, i) = pair;
      if constexpr (kWeightParts<F, N> == 2) {
        const float2 kept = matvec::UnpackBf16(pair);
        place(1, block, half, i) = PackBf16(v[2 * i] - kept.x, v[2 * i + 1] - kept.y);
      }
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t base = half == 0 ? low : high;
    const uint32_t scales = (half == 0 ? low_scales : high_scales) + lane / 4 * ScaleBytesOf(F);
    if constexpr (F == Format::kBf16 || F == Format::kF16) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint4 words = Load16(base + (unit * 2 + block) * 512 + lane * 16);
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t word = matvec::Word(words, i);
          if constexpr (F == Format::kBf16) {
            place(0, block, half, i) = word;
          } else {
            const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
            v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
          }
        }
        if constexpr (F == Format::kF16) put(block, half, v);
      }
    } else if constexpr (F == Format::kF32) {  // eight columns of a lane: two quarters of 64 bytes
      const uint32_t at = base + lane % 4 / 2 * 512 + lane / 4 * 64 + lane % 2 * 32;
      const uint4 first = Load16(at), second = Load16(at + 16);
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(matvec::Word(i < 4 ? first : second, i % 4));
      put(0, half, v);
    } else if constexpr (F == Format::kInt8) {
      const uint4 words = Load16(base + unit * 512 + lane * 16);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float scale =
            p.scale_bytes > 0
                ? matvec::LoadFloat(scales + ((unit * 64 + block * 32 + lane % 4 * 8) >> p.group_shift) * 32)
                : 1.0f;
        float v[8];
        FromInt8(matvec::Word(words, block * 2), matvec::Word(words, block * 2 + 1), scale, v);
        put(block, half, v);
      }
    } else {  // the unit's half of the 16 bytes
      uint32_t w[2];
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(w[0]), "=r"(w[1])
                   : "r"(base + unit / 2 * 512 + lane * 16 + unit % 2 * 8));
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float2 scale = matvec::LoadScale<F>(
            scales + ((unit * 64 + block * 32 + lane % 4 * 8) >> p.group_shift) * 8 * ScaleBytesOf(F));
        float v[8];
        FromInt4(w[block], scale.x, fmaf(-128.0f, scale.x, scale.y), v);
        put(block, half, v);
      }
    }
  }
}

}  // namespace celer::cuda::wide
