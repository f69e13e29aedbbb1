// Weights of all formats dequantized to bf16, in the registers from which wgmma takes them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/llm/matmul/cuda/wgmma/wgmma_ring.cuh"
#include "kernels/shared/cuda/fp4.cuh"
#include "kernels/shared/cuda/fp8.cuh"

namespace celer::cuda::wgmma {

// Whether a bf16 holds a weight, but for the scale of its row. kFine: HasFineScales().
template <Format F, bool kFine>
constexpr bool kHeldByBf16 = F == Format::kBf16 || F == Format::kMxfp4 ||
                             ((F == Format::kFp8 || F == Format::kInt8) && !kFine);
// Up to eight tokens have 16 bits of activations and of weights: two bf16 of each, where one does not hold
// them.
template <Format F, int N, bool kFine>
constexpr int kWeightParts = N == 16 && !kHeldByBf16<F, kFine> ? 2 : 1;

// Whether a unit's columns of one row have scales of their own, more than one. Products of up to eight tokens
// take them as they come, but for those of fp8.
inline bool HasFineScales(const DeviceMatrix& m) {
  return BitsOf(m.format) == 8 ? m.group > 0 : m.group < 64;
}

// The values of eight columns of a row, from the word(s) that hold them.
__device__ __forceinline__ void FromInt8(uint32_t w0, uint32_t w1, float scale, float (&v)[8]) {
  w0 ^= 0x80808080u;
  w1 ^= 0x80808080u;
#pragma unroll
  for (int i = 0; i < 8; ++i)  // 2^23 + byte
    v[i] = (__uint_as_float(__byte_perm(i < 4 ? w0 : w1, 0x4b000000u, 0x7440 + i % 4)) - 8388736.0f) * scale;
}
__device__ __forceinline__ void FromInt4(uint32_t w, float scale, float offset, float (&v)[8]) {
  const uint32_t even = w & 0x0f0f0f0fu, odd = w >> 4 & 0x0f0f0f0fu;
#pragma unroll
  for (int i = 0; i < 8; ++i)  // 128 + nibble
    v[i] = fmaf(__uint_as_float(__byte_perm(i % 2 == 0 ? even : odd, 0x43000000u, 0x7044 + i / 2 * 256)),
                scale, offset);
}

// What follows has fewer instructions and is exact enough for values that are rounded to bf16.
// Bytes 2i and 2i + 1 of a word that had 128 added to each. `upper` is the sum of 2^15 and 128, times scale.
__device__ __forceinline__ uint32_t PairFromInt8(uint32_t biased, int i, float scale, float upper) {
  float v[2];
#pragma unroll
  for (int j = 0; j < 2; ++j)  // 2^15 + byte
    v[j] = fmaf(__uint_as_float(__byte_perm(biased, 0x47000000u, 0x7504 + (2 * i + j) * 16)), scale, -upper);
  return PackBf16(v[0], v[1]);
}
// Two neighbours at once, in bf16, where 0x43 in the upper byte makes 128 plus the lower seven bits of it.
using fp8::AsPair;
using fp8::Pair;
using fp8::PairBits;
// Bytes 2i and 2i + 1 of a word: 128 plus the lower seven bits, less 128 or, if the upper bit is set, 256.
__device__ __forceinline__ Pair PairOfInt8(uint32_t w, int i) {
  const uint32_t bytes = __byte_perm(w, 0x43434343u, i == 0 ? 0x4140 : 0x4342);
  return __hsub2(AsPair(bytes & 0xff7fff7fu), AsPair(bytes & 0xff80ff80u));
}
// The nibbles of byte i, less 8; `high` is w >> 4, `upper` is kNibbleUpper in a register: an instruction
// takes one constant, and the compiler must not know that this is one.
__device__ __forceinline__ Pair PairOfInt4(uint32_t w, uint32_t high, uint32_t upper, int i) {
  const uint32_t nibbles = __byte_perm(w, high, (4 + i) << 8 | i);
  return __hsub2(AsPair((nibbles & 0x000f000fu) | upper), AsPair(0x43084308u));
}

// Where a lane finds its part of a stage: weights and scales of the two eights of its warp, and the scales of
// a unit's two blocks of 32 columns from there on.
template <Format F, int N>
struct LanePlaces {
  uint32_t weights[2], scales[2], blocks[kStageCols<F, N> / kUnitCols<F>][2];
};
template <Format F, int N>
__device__ __forceinline__ LanePlaces<F, N> FindLanePlaces(const Params& p, int pair, int lane) {
  LanePlaces<F, N> out;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto eight = static_cast<uint32_t>(EightOf(p, pair, half));
    out.weights[half] = eight * (kStageCols<F, N> * BitsOf(F)) + (F == Format::kF32 ? 0 : lane * 16);
    out.scales[half] = p.scale_offset + eight * p.scale_bytes + lane / 4 * ScaleBytesOf(F);
#pragma unroll
    for (int unit = 0; unit < kStageCols<F, N> / kUnitCols<F>; ++unit)
      out.blocks[unit][half] =
          ((unit * 64 + half * 32 + lane % 4 * 8) >> p.group_shift) * 8 * ScaleBytesOf(F);
  }
  return out;
}

// A unit's weights of one warp's 16 rows, as the products want them: a[part][k step][4].
template <Format F, int N, bool kFine>
__device__ __forceinline__ void LoadUnit(const Params& p, uint32_t stage, const LanePlaces<F, N>& places,
                                         int unit, int lane,
                                         uint32_t (&a)[kWeightParts<F, N, kFine>][kUnitCols<F> / 16][4]) {
  const auto place = [&](int part, int block, int half,
                         int i) -> uint32_t& {  // pair i of a lane's 32 columns
    return a[part][block * 2 + i / 2][half + i % 2 * 2];
  };
  const auto put = [&](int block, int half, const float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = PackBf16(v[2 * i], v[2 * i + 1]);
      place(0, block, half, i) = pair;
      if constexpr (kWeightParts<F, N, kFine> == 2) {
        const float2 kept = matvec::UnpackBf16(pair);
        place(1, block, half, i) = PackBf16(v[2 * i] - kept.x, v[2 * i + 1] - kept.y);
      }
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t base = stage + places.weights[half], scales = stage + places.scales[half];
    if constexpr (F == Format::kBf16 || F == Format::kF16) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint4 words = Load16(base + (unit * 2 + block) * 512);
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
      const uint4 words = Load16(base + unit * 512);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        constexpr bool kPairs = kWeightParts<F, N, kFine> == 1;
        float scale = 1;
        if (kPairs ? kFine : p.scale_bytes > 0)
          scale = matvec::LoadFloat(scales + places.blocks[unit][block]);
        if constexpr (kPairs) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t word = matvec::Word(words, block * 2 + i / 2);
            place(0, block, half, i) = kFine
                                           ? PairFromInt8(word ^ 0x80808080u, i % 2, scale, 32896.0f * scale)
                                           : PairBits(PairOfInt8(word, i % 2));
          }
        } else {
          float v[8];
          FromInt8(matvec::Word(words, block * 2), matvec::Word(words, block * 2 + 1), scale, v);
          put(block, half, v);
        }
      }
    } else if constexpr (F == Format::kFp8) {
      const uint4 words = Load16(base + unit * 512);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        if constexpr (!kFine) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            place(0, block, half, i) = fp8::PairOf(matvec::Word(words, block * 2 + i / 2), i % 2);
        } else if constexpr (kWeightParts<F, N, kFine> == 1) {
          const fp8::Scale scale(matvec::LoadFloat(scales + places.blocks[unit][block]));
#pragma unroll
          for (int i = 0; i < 4; ++i)
            place(0, block, half, i) = fp8::ScaledPair(matvec::Word(words, block * 2 + i / 2), i % 2, scale);
        } else {
          const float scale = matvec::LoadFloat(scales + places.blocks[unit][block]);
          float v[8];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair =
                matvec::UnpackBf16(fp8::PairOf(matvec::Word(words, block * 2 + i / 2), i % 2));
            v[2 * i] = pair.x * scale, v[2 * i + 1] = pair.y * scale;
          }
          put(block, half, v);
        }
      }
    } else if constexpr (F == Format::kMxfp4) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t word, pairs[4];
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(word)
                     : "r"(base + unit / 2 * 512 + unit % 2 * 8 + block * 4));
        fp4::ToPairs(word, fp4::PairScale(fp4::LoadExponent(scales + places.blocks[unit][block])), pairs);
#pragma unroll
        for (int i = 0; i < 4; ++i) place(0, block, half, i) = pairs[i];
      }
    } else {  // the unit's half of the 16 bytes
      uint32_t w[2];
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(w[0]), "=r"(w[1])
                   : "r"(base + unit / 2 * 512 + unit % 2 * 8));
      // Groups that fill a unit are celer's own; their scales are bf16 numbers (formats/int4.h).
      constexpr bool kPairs = kWeightParts<F, N, kFine> == 1 && !kFine;
      float2 scale;
      Pair factor, offset;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        if (!kPairs || block == 0) scale = matvec::LoadScale<F>(scales + places.blocks[unit][block]);
        if constexpr (kPairs) {
          if (block == 0) {
            factor = __float2bfloat162_rn(scale.x);
            offset = __float2bfloat162_rn(fmaf(8.0f, scale.x, scale.y));
          }
          const uint32_t upper_nibbles = w[block] >> 4;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            place(0, block, half, i) =
                PairBits(__hfma2(PairOfInt4(w[block], upper_nibbles, p.nibble_upper, i), factor, offset));
        } else {
          float v[8];
          FromInt4(w[block], scale.x, fmaf(-128.0f, scale.x, scale.y), v);
          put(block, half, v);
        }
      }
    }
  }
}

}  // namespace celer::cuda::wgmma
