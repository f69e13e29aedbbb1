// Integer tile kernels for NEON, included by one file per instruction set and built with its flags: all in an
// unnamed namespace, so that each file keeps its own copy.
//
// One token: sdot with the token's 8 columns in both halves of a register. Two tokens and more: smmla, where
// the CPU has it, on pairs of rows and pairs of tokens. Integers add exactly in any order, and the floats of
// one row and token are added block by block in one chain in every kernel, so a token's result does not
// depend on which of them computed it.
//
// Measured on Neoverse V1: about three of these instructions run per cycle, conversions one. So what counts
// is their number; for one token integers become floats by a subtraction (Unbias).
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/packed.h"

// Arrays of registers stay in registers only if every loop over them is unrolled.
#define CELER_UNROLL _Pragma("GCC unroll 16")

namespace celer::arm {
namespace {

constexpr int kRows = 8;
constexpr int kPairs = 4;  // of rows

inline int8x16_t LoadS8(const uint8_t* p) {
  return vld1q_s8(reinterpret_cast<const int8_t*>(p));
}

// 1.5 * 2^23 as float bits, where sums of a block begin: adding a small integer to the bits adds it to the
// number, so the sum is a float without a conversion. A block's sum stays below 2^22.
constexpr int32_t kBias = 0x4B400000;
alignas(16) constexpr int32_t kBiasAll[4] = {kBias, kBias, kBias, kBias};
alignas(16) constexpr int32_t kBiasEven[4] = {kBias, 0, kBias, 0};  // of pairs that will be added

// Volatile, so that the compiler neither keeps the value in a register nor copies it from one.
inline int32x4_t LoadFresh(const int32_t* p) {
  int32x4_t v;
  asm volatile("ldr %q0, [%1]" : "=w"(v) : "r"(p));
  return v;
}
inline int32x4_t FreshZero() {
  int32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}
inline float32x4_t Unbias(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(12582912.0f));
}

// Values of 32 columns, which are kParts parts of kSteps steps of 8 columns: one part of a row pair. kUnit is
// what the values are too large by.
struct Bytes {
  static constexpr int kBytes = 32 * kRows, kParts = 4, kSteps = 1;
  static constexpr float kUnit = 1.0f;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    w[0] = LoadS8(p + part * 64 + pair * 16);
  }
};
struct SignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f / 16;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vreinterpretq_s8_u8(vshlq_n_u8(packed, 4));
    w[1] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(0xF0)));
  }
};
struct UnsignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
    w[1] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
  }
};
struct Sixes {
  static constexpr int kBytes = 24 * kRows, kParts = 1, kSteps = 4;
  static constexpr float kUnit = 1.0f / 4;
  static inline void Load(const uint8_t* p, int, int pair, int8x16_t w[kSteps]) {
    uint8x16_t plane[3];
    CELER_UNROLL for (int s = 0; s < 3; ++s) {
      plane[s] = vld1q_u8(p + s * 64 + pair * 16);
      w[s] = vreinterpretq_s8_u8(vandq_u8(plane[s], vdupq_n_u8(0xFC)));
    }
    uint8x16_t last = vshlq_n_u8(plane[2], 2);
    last = vsliq_n_u8(last, plane[1], 4);
    last = vsliq_n_u8(last, plane[0], 6);
    w[3] = vreinterpretq_s8_u8(last);
  }
};

struct F32x8 {
  float32x4_t lo, hi;  // rows 0..3, 4..7
};
inline F32x8 LoadHalves(const uint8_t* p) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

template <class V, int kBytesOfScale, bool kMin>
struct BlockFormat {
  static constexpr int kScaleBytes = kBytesOfScale;
  static_assert(!kMin || V::kUnit == 1.0f);
  using Values = V;
  static constexpr bool kHasMin = kMin;
  static constexpr int kHeader = (kScaleBytes + (kMin ? 2 : 0)) * kRows;
  static inline F32x8 Scales(const uint8_t* header) {
    if constexpr (kScaleBytes == 2) return LoadHalves(header);
    const auto* p = reinterpret_cast<const float*>(header);
    return {vld1q_f32(p), vld1q_f32(p + 4)};
  }
  static inline F32x8 Mins(const uint8_t* header) { return LoadHalves(header + kScaleBytes * kRows); }
};
using Byte = BlockFormat<Bytes, 2, false>;
using ByteMin = BlockFormat<Bytes, 2, true>;
using ByteWide = BlockFormat<Bytes, 4, false>;
using Nibble = BlockFormat<SignedNibbles, 2, false>;
using NibbleMin = BlockFormat<UnsignedNibbles, 2, true>;

template <class V, int kSubCount, bool kMin>
struct SuperFormat {
  static_assert(!kMin || V::kUnit == 1.0f);
  using Values = V;
  static constexpr bool kHasMin = kMin;
  static constexpr int kSubs = kSubCount;
  static constexpr int kScales = 2 * kRows * (kMin ? 2 : 1);
  static constexpr int kMins = kScales + kSubs * kRows;
  static constexpr int kHeader = kMins + (kMin ? kSubs * kRows : 0);
  static constexpr int kBytes = kHeader + 8 * V::kBytes;
};
using SuperQ2 = SuperFormat<UnsignedNibbles, 16, true>;
using SuperQ3 = SuperFormat<SignedNibbles, 16, false>;
using SuperQ4 = SuperFormat<UnsignedNibbles, 8, true>;
using SuperQ5 = SuperFormat<Bytes, 8, true>;
using SuperQ6 = SuperFormat<Sixes, 16, false>;

// ---- one token, or two without smmla: kGroups row groups at once, each its own stream of memory ----

inline int8x16_t TwiceEight(const int8_t* q) {
  return vreinterpretq_s8_s64(vld1q_dup_s64(reinterpret_cast<const int64_t*>(q)));
}

// A stream that is read once, some blocks ahead of use.
template <int kBytes>
inline void Prefetch(const uint8_t* p) {
  constexpr int kAhead = kBytes > 200 ? 512 : 1024;  // measured; twice as far is far slower
  CELER_UNROLL for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + kAhead + i);
}

// Row pairs times 8 * kSteps columns of a token, added to sum; chains of dependent additions interleaved.
template <class Values>
inline void DotPart(const uint8_t* p, int part, const int8x16_t x[4], int32x4_t sum[kPairs]) {
  constexpr int kAtOnce = Values::kSteps == 4 ? 2 : 4;
  CELER_UNROLL for (int first = 0; first < kPairs; first += kAtOnce) {
    int8x16_t w[kAtOnce][Values::kSteps];
    CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) Values::Load(p, part, first + i, w[i]);
    CELER_UNROLL for (int s = 0; s < Values::kSteps; ++s) CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
        sum[first + i] = vdotq_s32(sum[first + i], w[i][s], x[part * Values::kSteps + s]);
  }
}

// The same for the two halves of 32 columns, apart.
template <class Values>
inline void DotHalves(const uint8_t* p, const int8x16_t x[4], int32x4_t (&sum)[2][kPairs]) {
  CELER_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
    int8x16_t w[4];
    CELER_UNROLL for (int part = 0; part < Values::kParts; ++part)
        Values::Load(p, part, pair, w + part * Values::kSteps);
    CELER_UNROLL for (int s = 0; s < 4; ++s) sum[s / 2][pair] = vdotq_s32(sum[s / 2][pair], w[s], x[s]);
  }
}

template <class Format, int kGroups>
inline void VectorBlocks(const TileJob& job, const uint8_t* w, const XPairBlock* x, int apart, int t,
                         float* out) {
  using Values = typename Format::Values;
  float32x4_t sum[kGroups][2];
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) sum[g][0] = sum[g][1] = vdupq_n_f32(0);
  for (int64_t c = 0; c < job.cols; c += job.span) {
    const uint8_t* const header = w;
    w += Format::kHeader;
    for (int64_t k = 0; k < job.span; k += kBlockCols, w += Values::kBytes, x += apart) {
      int8x16_t xq[4];
      CELER_UNROLL for (int s = 0; s < 4; ++s) xq[s] = TwiceEight(x->q[s][t]);
      const float32x4_t x_scale = vdupq_n_f32(x->scale[t]);
      constexpr int kAtOnce = kGroups > 1 ? 2 : 1;  // enough independent chains to hide their latency
      CELER_UNROLL for (int first = 0; first < kGroups; first += kAtOnce) {
        int32x4_t pairs[kAtOnce][kPairs];
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) CELER_UNROLL for (int p = 0; p < kPairs; ++p)
            pairs[i][p] = LoadFresh(kBiasEven);
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
            Prefetch<Values::kBytes>(w + (first + i) * job.group_bytes);
        CELER_UNROLL for (int part = 0; part < Values::kParts; ++part)
            CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
                DotPart<Values>(w + (first + i) * job.group_bytes, part, xq, pairs[i]);
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const int g = first + i;
          const F32x8 scale = Format::Scales(header + g * job.group_bytes);
          const float32x4_t lo = Unbias(vpaddq_s32(pairs[i][0], pairs[i][1]));
          const float32x4_t hi = Unbias(vpaddq_s32(pairs[i][2], pairs[i][3]));
          sum[g][0] = vfmaq_f32(sum[g][0], lo, vmulq_f32(scale.lo, x_scale));
          sum[g][1] = vfmaq_f32(sum[g][1], hi, vmulq_f32(scale.hi, x_scale));
          if constexpr (Format::kHasMin) {
            const F32x8 min = Format::Mins(header + g * job.group_bytes);
            const float32x4_t x_sum = vdupq_n_f32(x->sum[t]);
            sum[g][0] = vfmaq_f32(sum[g][0], min.lo, x_sum);
            sum[g][1] = vfmaq_f32(sum[g][1], min.hi, x_sum);
          }
        }
      }
    }
  }
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) CELER_UNROLL for (int i = 0; i < 2; ++i)
      vst1q_f32(out + g * kRows + i * 4, vmulq_n_f32(sum[g][i], Values::kUnit));
}

template <class Format, int kGroups>
inline void VectorSupers(const TileJob& job, const uint8_t* w, const XPairSuper* x, int apart, int t,
                         float* out) {
  using Values = typename Format::Values;
  float32x4_t sum[kGroups][2];
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) sum[g][0] = sum[g][1] = vdupq_n_f32(0);
  for (int64_t c = 0; c < job.cols; c += kSuperCols, w += Format::kBytes, x += apart) {
    CELER_UNROLL for (int g = 0; g < kGroups; ++g) {
      const uint8_t* const head = w + g * job.group_bytes;
      const uint8_t* p = head + Format::kHeader;
      int32x4_t dots[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, mins[2] = {dots[0], dots[0]};
      const auto add = [&](int sub, const int32x4_t pairs[kPairs]) {
        const int16x8_t scale =
            vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(head) + Format::kScales + sub * kRows));
        dots[0] = vmlaq_s32(dots[0], vpaddq_s32(pairs[0], pairs[1]), vmovl_s16(vget_low_s16(scale)));
        dots[1] = vmlaq_s32(dots[1], vpaddq_s32(pairs[2], pairs[3]), vmovl_high_s16(scale));
        if constexpr (Format::kHasMin) {
          const int16x8_t min = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(head + Format::kMins + sub * kRows)));
          const int16_t x_sum = Format::kSubs == 8 ? x->sum32[sub][t] : x->sum16[sub][t];
          mins[0] = vmlal_n_s16(mins[0], vget_low_s16(min), x_sum);
          mins[1] = vmlal_high_n_s16(mins[1], min, x_sum);
        }
      };
      for (int b = 0; b < 8; ++b, p += Values::kBytes) {
        int8x16_t xq[4];
        CELER_UNROLL for (int s = 0; s < 4; ++s) xq[s] = TwiceEight(x->q[4 * b + s][t]);
        if constexpr (Values::kSteps == 4) Prefetch<Values::kBytes>(p);  // others are slower with it
        if constexpr (Format::kSubs == 8) {
          int32x4_t pairs[kPairs];
          CELER_UNROLL for (int i = 0; i < kPairs; ++i) pairs[i] = FreshZero();
          CELER_UNROLL for (int part = 0; part < Values::kParts; ++part) DotPart<Values>(p, part, xq, pairs);
          add(b, pairs);
        } else {
          int32x4_t pairs[2][kPairs];
          CELER_UNROLL for (int i = 0; i < kPairs; ++i) pairs[0][i] = pairs[1][i] = FreshZero();
          DotHalves<Values>(p, xq, pairs);
          add(2 * b, pairs[0]);
          add(2 * b + 1, pairs[1]);
        }
      }
      const float32x4_t x_scale = vdupq_n_f32(x->scale[t]);
      const F32x8 d = LoadHalves(head);
      sum[g][0] = vfmaq_f32(sum[g][0], vcvtq_f32_s32(dots[0]), vmulq_f32(d.lo, x_scale));
      sum[g][1] = vfmaq_f32(sum[g][1], vcvtq_f32_s32(dots[1]), vmulq_f32(d.hi, x_scale));
      if constexpr (Format::kHasMin) {
        const F32x8 dmin = LoadHalves(head + 2 * kRows);
        sum[g][0] = vfmsq_f32(sum[g][0], vcvtq_f32_s32(mins[0]), vmulq_f32(dmin.lo, x_scale));
        sum[g][1] = vfmsq_f32(sum[g][1], vcvtq_f32_s32(mins[1]), vmulq_f32(dmin.hi, x_scale));
      }
    }
  }
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) CELER_UNROLL for (int i = 0; i < 2; ++i)
      vst1q_f32(out + g * kRows + i * 4, vmulq_n_f32(sum[g][i], Values::kUnit));
}

template <class Format, class X, int kGroups>
inline void Vector(const TileJob& job, const uint8_t* w, const X* x, int apart, int t, float* out) {
  if constexpr (requires { Format::kSubs; })
    VectorSupers<Format, kGroups>(job, w, x, apart, t, out);
  else
    VectorBlocks<Format, kGroups>(job, w, x, apart, t, out);
}

// One token over all row groups.
template <class Format, class X>
inline void OneToken(const TileJob& job, int t) {
  const int unit = t / kXPairTokens * kXPairTokens, apart = XPairs(job.tokens - unit);
  const auto* x = reinterpret_cast<const X*>(job.x + t / kXPairTokens * job.x_bytes) + (t - unit) / 2;
  float* out = job.out + t * job.out_stride;
  int g = 0;
  for (; g + 4 <= job.groups; g += 4)
    Vector<Format, X, 4>(job, job.w + g * job.group_bytes, x, apart, t % 2, out + g * kRows);
  for (; g < job.groups; ++g)
    Vector<Format, X, 1>(job, job.w + g * job.group_bytes, x, apart, t % 2, out + g * kRows);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

// ---- pairs of tokens: kP row pairs from `pair` on, times kT token pairs ----
// A sum register is [row 0, token 0], [row 0, token 1], [row 1, token 0], [row 1, token 1].

template <int kP>
inline void TwiceEach(const F32x8& v, int pair, float32x4_t out[kP]) {
  const float32x4_t first = kP == 4 || pair == 0 ? v.lo : v.hi;
  out[0] = vzip1q_f32(first, first);
  out[1] = vzip2q_f32(first, first);
  if constexpr (kP == 4) {
    out[2] = vzip1q_f32(v.hi, v.hi);
    out[3] = vzip2q_f32(v.hi, v.hi);
  }
}

template <int kP, int kT>
inline void StorePairs(const float32x4_t (&sum)[kP][kT], float unit, float* out, int64_t stride) {
  CELER_UNROLL for (int p = 0; p < kP; p += 2) CELER_UNROLL for (int t = 0; t < kT; ++t) {
    const float32x4_t a = vmulq_n_f32(sum[p][t], unit), b = vmulq_n_f32(sum[p + 1][t], unit);
    vst1q_f32(out + (2 * t) * stride + 2 * p, vuzp1q_f32(a, b));
    vst1q_f32(out + (2 * t + 1) * stride + 2 * p, vuzp2q_f32(a, b));
  }
}

// Blocks of bytes with a header each: two row pairs from `pair` on times four token pairs. By hand: compilers
// order it so that it takes a third longer. With kFetch the weights come from memory: some blocks ahead they
// are fetched into the L1 cache, and of `soon` 128 bytes a block into L2.
static_assert(sizeof(XPairBlock) == 96 && offsetof(XPairBlock, sum) == 16 && offsetof(XPairBlock, q) == 32);
// The loop over blocks; `fetch` and `mins` are what a variant does besides.
#define CELER_BYTE_LOOP(fetch, mins)     \
  "1:\n" fetch                           \
  "ldr d30, [%[s]]\n"                    \
  "fcvtl v30.4s, v30.4h\n"               \
  "zip1 v28.4s, v30.4s, v30.4s\n"        \
  "zip2 v29.4s, v30.4s, v30.4s\n"        \
  "movi v16.4s, #0\n"                    \
  "movi v17.4s, #0\n"                    \
  "movi v18.4s, #0\n"                    \
  "movi v19.4s, #0\n"                    \
  "movi v20.4s, #0\n"                    \
  "movi v21.4s, #0\n"                    \
  "movi v22.4s, #0\n"                    \
  "movi v23.4s, #0\n"                    \
  "ldp q24, q25, [%[w], #0]\n"           \
  "ldr q26, [%[x], #32]\n"               \
  "smmla v16.4s, v24.16b, v26.16b\n"     \
  "smmla v20.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #128]\n"              \
  "smmla v17.4s, v24.16b, v27.16b\n"     \
  "smmla v21.4s, v25.16b, v27.16b\n"     \
  "ldr q26, [%[x], #224]\n"              \
  "smmla v18.4s, v24.16b, v26.16b\n"     \
  "smmla v22.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #320]\n"              \
  "smmla v19.4s, v24.16b, v27.16b\n"     \
  "smmla v23.4s, v25.16b, v27.16b\n"     \
  "ldp q24, q25, [%[w], #64]\n"          \
  "ldr q26, [%[x], #48]\n"               \
  "smmla v16.4s, v24.16b, v26.16b\n"     \
  "smmla v20.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #144]\n"              \
  "smmla v17.4s, v24.16b, v27.16b\n"     \
  "smmla v21.4s, v25.16b, v27.16b\n"     \
  "ldr q26, [%[x], #240]\n"              \
  "smmla v18.4s, v24.16b, v26.16b\n"     \
  "smmla v22.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #336]\n"              \
  "smmla v19.4s, v24.16b, v27.16b\n"     \
  "smmla v23.4s, v25.16b, v27.16b\n"     \
  "ldp q24, q25, [%[w], #128]\n"         \
  "ldr q26, [%[x], #64]\n"               \
  "smmla v16.4s, v24.16b, v26.16b\n"     \
  "smmla v20.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #160]\n"              \
  "smmla v17.4s, v24.16b, v27.16b\n"     \
  "smmla v21.4s, v25.16b, v27.16b\n"     \
  "ldr q26, [%[x], #256]\n"              \
  "smmla v18.4s, v24.16b, v26.16b\n"     \
  "smmla v22.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #352]\n"              \
  "smmla v19.4s, v24.16b, v27.16b\n"     \
  "smmla v23.4s, v25.16b, v27.16b\n"     \
  "ldp q24, q25, [%[w], #192]\n"         \
  "ldr q26, [%[x], #80]\n"               \
  "smmla v16.4s, v24.16b, v26.16b\n"     \
  "smmla v20.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #176]\n"              \
  "smmla v17.4s, v24.16b, v27.16b\n"     \
  "smmla v21.4s, v25.16b, v27.16b\n"     \
  "ldr q26, [%[x], #272]\n"              \
  "smmla v18.4s, v24.16b, v26.16b\n"     \
  "smmla v22.4s, v25.16b, v26.16b\n"     \
  "ldr q27, [%[x], #368]\n"              \
  "smmla v19.4s, v24.16b, v27.16b\n"     \
  "smmla v23.4s, v25.16b, v27.16b\n"     \
  "ldr q26, [%[x], #0]\n"                \
  "scvtf v16.4s, v16.4s\n"               \
  "fmul v24.4s, v28.4s, v26.4s\n"        \
  "fmla %[a0].4s, v16.4s, v24.4s\n"      \
  "scvtf v20.4s, v20.4s\n"               \
  "fmul v25.4s, v29.4s, v26.4s\n"        \
  "fmla %[a4].4s, v20.4s, v25.4s\n"      \
  "ldr q27, [%[x], #96]\n"               \
  "scvtf v17.4s, v17.4s\n"               \
  "fmul v24.4s, v28.4s, v27.4s\n"        \
  "fmla %[a1].4s, v17.4s, v24.4s\n"      \
  "scvtf v21.4s, v21.4s\n"               \
  "fmul v25.4s, v29.4s, v27.4s\n"        \
  "fmla %[a5].4s, v21.4s, v25.4s\n"      \
  "ldr q26, [%[x], #192]\n"              \
  "scvtf v18.4s, v18.4s\n"               \
  "fmul v24.4s, v28.4s, v26.4s\n"        \
  "fmla %[a2].4s, v18.4s, v24.4s\n"      \
  "scvtf v22.4s, v22.4s\n"               \
  "fmul v25.4s, v29.4s, v26.4s\n"        \
  "fmla %[a6].4s, v22.4s, v25.4s\n"      \
  "ldr q27, [%[x], #288]\n"              \
  "scvtf v19.4s, v19.4s\n"               \
  "fmul v24.4s, v28.4s, v27.4s\n"        \
  "fmla %[a3].4s, v19.4s, v24.4s\n"      \
  "scvtf v23.4s, v23.4s\n"               \
  "fmul v25.4s, v29.4s, v27.4s\n"        \
  "fmla %[a7].4s, v23.4s, v25.4s\n" mins \
  "add %[w], %[w], %[step]\n"            \
  "add %[s], %[s], %[step]\n"            \
  "add %[x], %[x], #384\n"               \
  "subs %[n], %[n], #1\n"                \
  "b.ne 1b\n"
#define CELER_BYTE_MINS             \
  "ldr d30, [%[s], #16]\n"          \
  "fcvtl v30.4s, v30.4h\n"          \
  "zip1 v28.4s, v30.4s, v30.4s\n"   \
  "zip2 v29.4s, v30.4s, v30.4s\n"   \
  "ldr q26, [%[x], #16]\n"          \
  "fmla %[a0].4s, v28.4s, v26.4s\n" \
  "fmla %[a4].4s, v29.4s, v26.4s\n" \
  "ldr q27, [%[x], #112]\n"         \
  "fmla %[a1].4s, v28.4s, v27.4s\n" \
  "fmla %[a5].4s, v29.4s, v27.4s\n" \
  "ldr q26, [%[x], #208]\n"         \
  "fmla %[a2].4s, v28.4s, v26.4s\n" \
  "fmla %[a6].4s, v29.4s, v26.4s\n" \
  "ldr q27, [%[x], #304]\n"         \
  "fmla %[a3].4s, v28.4s, v27.4s\n" \
  "fmla %[a7].4s, v29.4s, v27.4s\n"
#define CELER_BYTE_FETCH           \
  "prfm pldl2keep, [%[p]]\n"       \
  "prfm pldl2keep, [%[p], #64]\n"  \
  "add %[p], %[p], #128\n"         \
  "prfm pldl1keep, [%[w], #544]\n" \
  "prfm pldl1keep, [%[w], #608]\n" \
  "prfm pldl1keep, [%[w], #672]\n" \
  "prfm pldl1keep, [%[w], #736]\n"

template <bool kMin, bool kFetch>
inline void ByteBlocks(const uint8_t* w, const XPairBlock* x, int64_t blocks, int pair, const uint8_t* soon,
                       float32x4_t (&sum)[2][4]) {
  constexpr int64_t kStep = (kMin ? 4 : 2) * kRows + Bytes::kBytes;
  const uint8_t* header = w + 4 * pair;
  w += kStep - Bytes::kBytes + 16 * pair;
#define CELER_OPERANDS                                                                                         \
  : [a0] "+w"(sum[0][0]), [a1] "+w"(sum[0][1]), [a2] "+w"(sum[0][2]), [a3] "+w"(sum[0][3]),                   \
    [a4] "+w"(sum[1][0]), [a5] "+w"(sum[1][1]), [a6] "+w"(sum[1][2]), [a7] "+w"(sum[1][3]), [w] "+r"(w),      \
    [s] "+r"(header), [x] "+r"(x), [n] "+r"(blocks), [p] "+r"(soon)                                           \
  : [step] "i"(kStep)                                                                                         \
  : "memory", "cc", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
    "v29", "v30"
  // clang-format off
  if constexpr (kMin && kFetch)
    asm volatile(CELER_BYTE_LOOP(CELER_BYTE_FETCH, CELER_BYTE_MINS) CELER_OPERANDS);
  else if constexpr (kMin)
    asm volatile(CELER_BYTE_LOOP("", CELER_BYTE_MINS) CELER_OPERANDS);
  else if constexpr (kFetch)
    asm volatile(CELER_BYTE_LOOP(CELER_BYTE_FETCH, "") CELER_OPERANDS);
  else
    asm volatile(CELER_BYTE_LOOP("", "") CELER_OPERANDS);
    // clang-format on
#undef CELER_OPERANDS
}
#undef CELER_BYTE_LOOP
#undef CELER_BYTE_MINS
#undef CELER_BYTE_FETCH

template <class Format, int kP, int kT>
inline void MatrixBlocks(const TileJob& job, const uint8_t* w, const XPairBlock* x, int apart, int pair,
                         float* out, int64_t stride) {
  using Values = typename Format::Values;
  float32x4_t sum[kP][kT];
  CELER_UNROLL for (int p = 0; p < kP; ++p) CELER_UNROLL for (int t = 0; t < kT; ++t) sum[p][t] =
      vdupq_n_f32(0);
  if constexpr (Values::kSteps == 1 && Format::kScaleBytes == 2 && kP == 2 && kT == 4) {
    if (job.span == kBlockCols) {
      // While the two halves of this group are computed, the next group comes from memory.
      const int64_t blocks = job.cols / kBlockCols;
      ByteBlocks<Format::kHasMin, true>(w, x, blocks, pair, w + job.group_bytes + pair / 2 * blocks * 128,
                                        sum);
      return StorePairs<kP, kT>(sum, Values::kUnit, out, stride);
    }
  }
  for (int64_t c = 0; c < job.cols; c += job.span) {
    float32x4_t scale[kP], min[kP];
    TwiceEach<kP>(Format::Scales(w), pair, scale);
    if constexpr (Format::kHasMin) TwiceEach<kP>(Format::Mins(w), pair, min);
    w += Format::kHeader;
    for (int64_t k = 0; k < job.span; k += kBlockCols, w += Values::kBytes, x += apart) {
      int32x4_t dot[kP][kT];
      CELER_UNROLL for (int p = 0; p < kP; ++p) CELER_UNROLL for (int t = 0; t < kT; ++t) dot[p][t] =
          LoadFresh(kBiasAll);
      CELER_UNROLL for (int part = 0; part < Values::kParts; ++part) {
        int8x16_t wq[kP][Values::kSteps];
        CELER_UNROLL for (int p = 0; p < kP; ++p) Values::Load(w, part, pair + p, wq[p]);
        CELER_UNROLL for (int s = 0; s < Values::kSteps; ++s) CELER_UNROLL for (int t = 0; t < kT; ++t) {
          const int8x16_t xq = vld1q_s8(x[t].q[part * Values::kSteps + s][0]);
          CELER_UNROLL for (int p = 0; p < kP; ++p) dot[p][t] = vmmlaq_s32(dot[p][t], wq[p][s], xq);
        }
      }
      CELER_UNROLL for (int t = 0; t < kT; ++t) {
        const float32x4_t x_scale = vld1q_f32(x[t].scale);
        CELER_UNROLL for (int p = 0; p < kP; ++p) sum[p][t] =
            vfmaq_f32(sum[p][t], Unbias(dot[p][t]), vmulq_f32(scale[p], x_scale));
        if constexpr (Format::kHasMin) {
          const float32x4_t x_sum = vld1q_f32(x[t].sum);
          CELER_UNROLL for (int p = 0; p < kP; ++p) sum[p][t] = vfmaq_f32(sum[p][t], min[p], x_sum);
        }
      }
    }
  }
  StorePairs<kP, kT>(sum, Values::kUnit, out, stride);
}

// The sub-scales of rows 2 * pair .. 2 * pair + 1 as [s0 s0 s1 s1].
inline int32x4_t SubScale(const int8_t* scales, int pair) {
  const int32x2_t two = {scales[2 * pair], scales[2 * pair + 1]};
  return vcombine_s32(vdup_lane_s32(two, 0), vdup_lane_s32(two, 1));
}

template <class Format, int kP, int kT>
inline void MatrixSupers(const TileJob& job, const uint8_t* w, const XPairSuper* x, int apart, int pair,
                         float* out, int64_t stride) {
  using Values = typename Format::Values;
  float32x4_t sum[kP][kT];
  CELER_UNROLL for (int p = 0; p < kP; ++p) CELER_UNROLL for (int t = 0; t < kT; ++t) sum[p][t] =
      vdupq_n_f32(0);
  for (int64_t c = 0; c < job.cols; c += kSuperCols, w += Format::kBytes, x += apart) {
    float32x4_t d[kP], dmin[kP];
    TwiceEach<kP>(LoadHalves(w), pair, d);
    if constexpr (Format::kHasMin) TwiceEach<kP>(LoadHalves(w + 2 * kRows), pair, dmin);
    CELER_UNROLL for (int p = 0; p < kP; ++p) {
      int32x4_t dots[kT], mins[kT];
      CELER_UNROLL for (int t = 0; t < kT; ++t) dots[t] = mins[t] = vdupq_n_s32(0);
      const auto* scales = reinterpret_cast<const int8_t*>(w) + Format::kScales;
      const uint8_t* values = w + Format::kHeader;
      constexpr int kSteps = 32 / Format::kSubs;  // of 8 columns, in a sub-block
      for (int b = 0; b < 8; ++b, values += Values::kBytes) {
        int8x16_t wq[4];
        CELER_UNROLL for (int part = 0; part < Values::kParts; ++part)
            Values::Load(values, part, pair + p, wq + part * Values::kSteps);
        CELER_UNROLL for (int first = 0; first < 4; first += kSteps) {
          const int sub = (4 * b + first) / kSteps;
          const int32x4_t scale = SubScale(scales + sub * kRows, pair + p);
          int32x4_t dot[kT];
          CELER_UNROLL for (int t = 0; t < kT; ++t) dot[t] = FreshZero();
          CELER_UNROLL for (int s = first; s < first + kSteps; ++s) CELER_UNROLL for (int t = 0; t < kT; ++t)
              dot[t] = vmmlaq_s32(dot[t], wq[s], vld1q_s8(x[t].q[4 * b + s][0]));
          CELER_UNROLL for (int t = 0; t < kT; ++t) dots[t] = vmlaq_s32(dots[t], dot[t], scale);
          if constexpr (Format::kHasMin) {
            const uint8_t* m = w + Format::kMins + sub * kRows + 2 * (pair + p);
            const int16x4_t min = {m[0], m[0], m[1], m[1]};
            CELER_UNROLL for (int t = 0; t < kT; ++t) mins[t] =
                vmlal_s16(mins[t], min, vld1_s16(Format::kSubs == 8 ? x[t].sum32[sub] : x[t].sum16[sub]));
          }
        }
      }
      CELER_UNROLL for (int t = 0; t < kT; ++t) {
        const float32x4_t x_scale = vld1q_f32(x[t].scale);
        sum[p][t] = vfmaq_f32(sum[p][t], vcvtq_f32_s32(dots[t]), vmulq_f32(d[p], x_scale));
        if constexpr (Format::kHasMin)
          sum[p][t] = vfmsq_f32(sum[p][t], vcvtq_f32_s32(mins[t]), vmulq_f32(dmin[p], x_scale));
      }
    }
  }
  StorePairs<kP, kT>(sum, Values::kUnit, out, stride);
}

template <class Format, int kP, int kT>
inline void Matrix(const TileJob& job, const uint8_t* w, const uint8_t* x, int apart, int pair, float* out,
                   int64_t stride) {
  if constexpr (requires { Format::kSubs; })
    MatrixSupers<Format, kP, kT>(job, w, reinterpret_cast<const XPairSuper*>(x), apart, pair, out, stride);
  else
    MatrixBlocks<Format, kP, kT>(job, w, reinterpret_cast<const XPairBlock*>(x), apart, pair, out, stride);
}

// All rows of one group times kT token pairs.
template <class Format, int kT>
inline void GroupTimes(const TileJob& job, const uint8_t* w, const uint8_t* x, int apart, float* out,
                       int64_t stride) {
  if constexpr (kT <= 2) return Matrix<Format, 4, kT>(job, w, x, apart, 0, out, stride);
  Matrix<Format, 2, kT>(job, w, x, apart, 0, out, stride);
  Matrix<Format, 2, kT>(job, w, x, apart, 2, out + 4, stride);
}

// One group times all tokens, eight at a time.
template <class Format>
inline void GroupTokens(const TileJob& job, const uint8_t* w, float* group_out) {
  for (int t = 0; t < job.tokens; t += kXPairTokens) {
    const uint8_t* x = job.x + t / kXPairTokens * job.x_bytes;
    float* out = group_out + t * job.out_stride;
    const int tokens = job.tokens - t, apart = XPairs(tokens);
    if (tokens >= 8) {
      GroupTimes<Format, 4>(job, w, x, apart, out, job.out_stride);
      continue;
    }
    // An odd last token has a pair beside it that nobody asked for; its sums must not be stored.
    float tail[8 * kRows];
    const bool odd = tokens % 2 != 0;
    float* to = odd ? tail : out;
    const int64_t stride = odd ? kRows : job.out_stride;
    switch ((tokens + 1) / 2) {
      case 1:
        GroupTimes<Format, 1>(job, w, x, apart, to, stride);
        break;
      case 2:
        GroupTimes<Format, 2>(job, w, x, apart, to, stride);
        break;
      case 3:
        GroupTimes<Format, 3>(job, w, x, apart, to, stride);
        break;
      default:
        GroupTimes<Format, 4>(job, w, x, apart, to, stride);
    }
    if (odd)
      for (int i = 0; i < tokens; ++i)
        for (int r = 0; r < kRows; r += 4)
          vst1q_f32(out + i * job.out_stride + r, vld1q_f32(tail + i * kRows + r));
  }
}

// Many tokens: nibbles are unpacked to bytes once for all of them, and columns are taken in chunks whose
// weights (of a job's row groups) and activations (of 8 tokens) stay in the L1 cache together.
constexpr int kWideTokens = 16;  // from here on
constexpr int kChunk = 32;       // blocks
constexpr int kMaxGroups = 4, kMaxUnits = 16;

template <class V, bool kMin>
inline bool WideTile(const TileJob& job, BlockFormat<V, 2, kMin>) {
  using Format = BlockFormat<V, 2, kMin>;
  constexpr int kPacked = Format::kHeader + V::kBytes, kUnpacked = Format::kHeader + Bytes::kBytes;
  if (job.tokens < kWideTokens || job.span != kBlockCols) return false;
  const int units = job.tokens / kXPairTokens, rest = job.tokens % kXPairTokens;
  if (job.groups > kMaxGroups || units > kMaxUnits) return false;
  alignas(64) static thread_local uint8_t scratch[kMaxGroups * kChunk * kUnpacked];
  alignas(64) static thread_local float32x4_t sums[kMaxUnits][kMaxGroups][2][2][4];  // halves of the rows
  const int64_t blocks = job.cols / kBlockCols;
  for (int64_t first = 0; first < blocks; first += kChunk) {
    const int64_t count = blocks - first < kChunk ? blocks - first : kChunk;
    const uint8_t* w[kMaxGroups];
    for (int g = 0; g < job.groups; ++g) {
      // Bytes are copied too: side by side the groups do not push each other out of the cache.
      const uint8_t* from = job.w + g * job.group_bytes + first * kPacked;
      uint8_t* to = scratch + g * kChunk * kUnpacked;
      w[g] = to;
      for (int64_t b = 0; b < count; ++b, from += kPacked, to += kUnpacked) {
        for (int i = 0; i < Format::kHeader; i += 16) vst1q_u8(to + i, vld1q_u8(from + i));
        for (int part = 0; part < V::kParts; ++part)
          for (int pair = 0; pair < kPairs; ++pair) {
            int8x16_t values[V::kSteps];
            V::Load(from + Format::kHeader, part, pair, values);
            for (int s = 0; s < V::kSteps; ++s)
              vst1q_u8(to + Format::kHeader + (part * V::kSteps + s) * 64 + pair * 16,
                       vreinterpretq_u8_s8(values[s]));
          }
      }
    }
    // What comes next of these groups, or of the next job's, is fetched while these meet their tokens.
    const bool last = first + count == blocks;
    const uint8_t* const soon =
        job.w + (last ? job.groups * job.group_bytes : (first + count) * static_cast<int64_t>(kPacked));
    for (int u = 0; u < units; ++u) {
      const auto* x = reinterpret_cast<const XPairBlock*>(job.x + u * job.x_bytes) + first * 4;
      for (int g = 0; g < job.groups; ++g)
        for (int half = 0; half < 2; ++half) {
          float32x4_t(&kept)[2][4] = sums[u][g][half];
          float32x4_t sum[2][4];
          CELER_UNROLL for (int p = 0; p < 2; ++p) CELER_UNROLL for (int t = 0; t < 4; ++t) sum[p][t] =
              first == 0 ? vdupq_n_f32(0) : kept[p][t];
          const int64_t share = count * kPacked * half / 2 + count * kPacked / 2 * u / units;
          for (int64_t at = share; at < share + count * kPacked / 2 / units; at += 64)
            __builtin_prefetch(soon + g * job.group_bytes + at, 0, 2);
          ByteBlocks<kMin, false>(w[g], x, count, 2 * half, nullptr, sum);
          if (last) {
            StorePairs<2, 4>(sum, V::kUnit,
                             job.out + u * kXPairTokens * job.out_stride + g * kRows + 4 * half,
                             job.out_stride);
          } else {
            CELER_UNROLL for (int p = 0; p < 2; ++p) CELER_UNROLL for (int t = 0; t < 4; ++t) kept[p][t] =
                sum[p][t];
          }
        }
    }
  }
  if (rest > 0) {
    TileJob tail = job;
    tail.x += units * job.x_bytes;
    tail.out += units * kXPairTokens * job.out_stride;
    tail.tokens = rest;
    for (int g = 0; g < job.groups; ++g)
      GroupTokens<Format>(tail, job.w + g * job.group_bytes, tail.out + g * kRows);
  }
  return true;
}
inline bool WideTile(const TileJob&, ...) {
  return false;
}

template <class Format, class X>
inline void Tile(const TileJob& job) {
  if (job.tokens == 1) return OneToken<Format, X>(job, 0);
  if (WideTile(job, Format())) return;
  for (int g = 0; g < job.groups; ++g)
    GroupTokens<Format>(job, job.w + g * job.group_bytes, job.out + g * kRows);
}

#else

template <class Format, class X>
inline void Tile(const TileJob& job) {
  for (int t = 0; t < job.tokens; ++t) OneToken<Format, X>(job, t);
}

#endif

}  // namespace
}  // namespace celer::arm
