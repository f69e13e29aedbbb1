// Integer tile kernels for NEON with matrix instructions.
//
// One token: sdot with the token's 8 columns in both halves of a register. Two tokens and more: smmla on
// pairs of rows and pairs of tokens. Integers add exactly in any order, and the floats of one row and token
// are added block by block in one chain in every kernel, so a token's result does not depend on which of them
// computed it.
//
// Measured on Neoverse V1: about three of these instructions run per cycle, conversions one. So what counts
// is their number: integers become scaled floats by one subtraction (XPairBlock), and nibbles are multiplied
// where they stand by the instructions for unsigned times signed bytes.
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/block_formats_i8mm.h"
#include "kernels/llm/matmul/cpu/arm/byte_loops_i8mm.h"
#include "kernels/llm/matmul/cpu/arm/integer_tile_neon.h"
#include "kernels/llm/matmul/cpu/arm/nibble_streams_i8mm.h"
#include "kernels/llm/matmul/cpu/arm/tile_arm.h"
#include "kernels/llm/matmul/cpu/arm/wide_tile_i8mm.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

// As LoadFresh().
inline int32x4_t FreshZero() {
  int32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}

using SuperQ2 = SuperFormat<UnsignedNibbles, 16, true>;
using SuperQ3 = SuperFormat<SignedNibbles, 16, false>;
using SuperQ4 = SuperFormat<UnsignedNibbles, 8, true>;
using SuperQ5 = SuperFormat<Bytes, 8, true>;
using SuperQ6 = SuperFormat<Sixes, 16, false>;

// ---- one token: kGroups row groups at once, each its own stream of memory ----

inline int8x16_t TwiceEight(const int8_t* q) {
  return vreinterpretq_s8_s64(vld1q_dup_s64(reinterpret_cast<const int64_t*>(q)));
}

template <class Values>
inline int32x4_t Dot(int32x4_t sum, int8x16_t w, int8x16_t x) {
  if constexpr (Values::kUnsigned) return vusdotq_s32(sum, vreinterpretq_u8_s8(w), x);
  return vdotq_s32(sum, w, x);
}

// Of a stream that is read once. Where there is much to compute for a byte, hardware is not early enough with
// bringing it from L3 to L1, and less far is better (Q6_K, TinyLlama: 52 tokens/s instead of 35).
template <int kBytes>
inline void Prefetch(const uint8_t* p) {
  constexpr int kFar = kBytes < 256 ? 6144 : kStreamAhead;
  if constexpr (kBytes < 256)
    CELER_UNROLL for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + 1024 + i);
  CELER_UNROLL for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + kFar + i, 0, 1);
}

// Row pairs times 8 * kSteps columns of a token, added to sum; chains of dependent additions interleaved.
template <class Values>
inline void DotPart(const uint8_t* p, int part, const int8x16_t x[4], int32x4_t sum[kPairs]) {
  constexpr int kAtOnce = Values::kSteps == 4 ? 2 : 4;
  CELER_UNROLL for (int first = 0; first < kPairs; first += kAtOnce) {
    int8x16_t w[kAtOnce][Values::kSteps];
    CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) Values::Load(p, part, first + i, w[i]);
    CELER_UNROLL for (int s = 0; s < Values::kSteps; ++s) CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
        sum[first + i] = Dot<Values>(sum[first + i], w[i][s], x[part * Values::kSteps + s]);
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

// The scaled sums of four rows from those of two row pairs; paired nibbles have activations of a lone token
// (XPairBlock).
template <class Values>
inline float32x4_t AddPairs(int32x4_t a, int32x4_t b, float32x4_t zero) {
  if constexpr (Values::kUnsigned) return vpaddq_f32(vreinterpretq_f32_s32(a), vreinterpretq_f32_s32(b));
  return vsubq_f32(vreinterpretq_f32_s32(vpaddq_s32(a, b)), zero);
}

template <class Format, int kGroups>
inline void VectorBlocks(const TileJob& job, const uint8_t* w, const XPairBlock* x, int apart, float* out) {
  using Values = typename Format::Values;
  float32x4_t sum[kGroups][2];
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) sum[g][0] = sum[g][1] = vdupq_n_f32(0);
  if constexpr (Values::kUnsigned && kGroups == 4) {
    if (job.span == kBlockCols && apart == 1) {
      NibbleStreams<Format::kExtra>(w, job.group_bytes, x, job.cols / kBlockCols, sum);
      CELER_UNROLL for (int g = 0; g < kGroups; ++g) CELER_UNROLL for (int i = 0; i < 2; ++i)
          vst1q_f32(out + g * job.rounds * kRows + i * 4, vmulq_n_f32(sum[g][i], Values::kUnit));
      return;
    }
  }
  for (int64_t c = 0; c < job.cols; c += job.span) {
    const uint8_t* const header = w;
    w += Format::kHeader;
    for (int64_t k = 0; k < job.span; k += kBlockCols, w += Values::kBytes, x += apart) {
      int8x16_t xq[4];
      CELER_UNROLL for (int s = 0; s < 4; ++s) xq[s] = vld1q_s8(x->q[s][0]);
      const float32x4_t zero = Format::Zero(*x);
      constexpr int kAtOnce = kGroups > 1 ? 2 : 1;  // enough independent chains to hide their latency
      CELER_UNROLL for (int first = 0; first < kGroups; first += kAtOnce) {
        int32x4_t pairs[kAtOnce][kPairs];
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) CELER_UNROLL for (int p = 0; p < kPairs; ++p)
            pairs[i][p] = LoadFresh(x->start);
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
            Prefetch<Values::kBytes>(w + (first + i) * job.group_bytes);
        CELER_UNROLL for (int part = 0; part < Values::kParts; ++part)
            CELER_UNROLL for (int i = 0; i < kAtOnce; ++i)
                DotPart<Values>(w + (first + i) * job.group_bytes, part, xq, pairs[i]);
        CELER_UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const int g = first + i;
          const F32x8 scale = Format::Scales(header + g * job.group_bytes);
          const float32x4_t lo = AddPairs<Values>(pairs[i][0], pairs[i][1], zero);
          const float32x4_t hi = AddPairs<Values>(pairs[i][2], pairs[i][3], zero);
          sum[g][0] = vfmaq_f32(sum[g][0], lo, scale.lo);
          sum[g][1] = vfmaq_f32(sum[g][1], hi, scale.hi);
          if constexpr (Format::kHasMin) {
            const F32x8 min = Format::Mins(header + g * job.group_bytes);
            const float32x4_t x_sum = vdupq_n_f32(x->sum[0]);
            sum[g][0] = vfmaq_f32(sum[g][0], min.lo, x_sum);
            sum[g][1] = vfmaq_f32(sum[g][1], min.hi, x_sum);
          }
        }
      }
    }
  }
  CELER_UNROLL for (int g = 0; g < kGroups; ++g) CELER_UNROLL for (int i = 0; i < 2; ++i)
      vst1q_f32(out + g * job.rounds * kRows + i * 4, vmulq_n_f32(sum[g][i], Values::kUnit));
}

template <class Format, int kGroups>
inline void VectorSupers(const TileJob& job, const uint8_t* w, const XPairSuper* x, int apart, float* out) {
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
          const int16_t x_sum = Format::kSubs == 8 ? x->sum32[sub][0] : x->sum16[sub][0];
          mins[0] = vmlal_n_s16(mins[0], vget_low_s16(min), x_sum);
          mins[1] = vmlal_high_n_s16(mins[1], min, x_sum);
        }
      };
      for (int b = 0; b < 8; ++b, p += Values::kBytes) {
        int8x16_t xq[4];
        CELER_UNROLL for (int s = 0; s < 4; ++s) xq[s] = TwiceEight(x->q[4 * b + s][0]);
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
      const float32x4_t x_scale = vdupq_n_f32(x->scale[0]);
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
      vst1q_f32(out + g * job.rounds * kRows + i * 4, vmulq_n_f32(sum[g][i], Values::kUnit));
}

template <class Format, class X, int kGroups>
inline void Vector(const TileJob& job, const uint8_t* w, const X* x, int apart, float* out) {
  if constexpr (requires { Format::kSubs; })
    VectorSupers<Format, kGroups>(job, w, x, apart, out);
  else
    VectorBlocks<Format, kGroups>(job, w, x, apart, out);
}

// One token over all row groups.
template <class Format, class X>
inline void OneToken(const TileJob& job) {
  const int apart = XPairs(job.tokens);
  const auto* x = reinterpret_cast<const X*>(job.x);
  float* out = job.out;
  const uint8_t* w = job.w;
  const int64_t group_out = job.rounds * kRows;
  for (int i = 0; i < job.rounds; ++i, w += job.round_bytes, out += kRows) {
    int g = 0;
    for (; g + 4 <= job.groups; g += 4)
      Vector<Format, X, 4>(job, w + g * job.group_bytes, x, apart, out + g * group_out);
    for (; g < job.groups; ++g)
      Vector<Format, X, 1>(job, w + g * job.group_bytes, x, apart, out + g * group_out);
  }
}

// ---- pairs of tokens: kP row pairs from `pair` on, times kT token pairs ----
// A sum register is [row 0, token 0], [row 0, token 1], [row 1, token 0], [row 1, token 1].

template <class Values>
inline int32x4_t DotPairs(int32x4_t sum, int8x16_t w, int8x16_t x) {
  if constexpr (Values::kUnsigned) return vusmmlaq_s32(sum, vreinterpretq_u8_s8(w), x);
  return vmmlaq_s32(sum, w, x);
}

template <int kP, int kT>
inline void StorePairs(const float32x4_t (&sum)[kP][kT], float unit, float* out, int64_t stride) {
  CELER_UNROLL for (int p = 0; p < kP; p += 2) CELER_UNROLL for (int t = 0; t < kT; ++t) {
    const float32x4_t a = vmulq_n_f32(sum[p][t], unit), b = vmulq_n_f32(sum[p + 1][t], unit);
    vst1q_f32(out + (2 * t) * stride + 2 * p, vuzp1q_f32(a, b));
    vst1q_f32(out + (2 * t + 1) * stride + 2 * p, vuzp2q_f32(a, b));
  }
}

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
      StreamBytes<Format::kHasMin>(w, x, blocks, pair, w + job.group_bytes + pair / 2 * blocks * 128, sum);
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
          LoadFresh(x[t].start);
      CELER_UNROLL for (int part = 0; part < Values::kParts; ++part) {
        int8x16_t wq[kP][Values::kSteps];
        CELER_UNROLL for (int p = 0; p < kP; ++p) Values::Load(w, part, pair + p, wq[p]);
        CELER_UNROLL for (int s = 0; s < Values::kSteps; ++s) CELER_UNROLL for (int t = 0; t < kT; ++t) {
          const int8x16_t xq = vld1q_s8(x[t].q[part * Values::kSteps + s][0]);
          CELER_UNROLL for (int p = 0; p < kP; ++p) dot[p][t] = DotPairs<Values>(dot[p][t], wq[p][s], xq);
        }
      }
      CELER_UNROLL for (int t = 0; t < kT; ++t) {
        const float32x4_t zero = Format::Zeros(x[t]);
        CELER_UNROLL for (int p = 0; p < kP; ++p) sum[p][t] =
            vfmaq_f32(sum[p][t], vsubq_f32(vreinterpretq_f32_s32(dot[p][t]), zero), scale[p]);
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
template <class Format, class X>
inline void GroupTokens(const TileJob& job, const uint8_t* w, float* group_out) {
  for (int t = 0; t < job.tokens; t += kXUnitTokens) {
    const uint8_t* x = job.x + t / kXUnitTokens * job.x_bytes;
    float* out = group_out + t * job.out_stride;
    const int tokens = job.tokens - t, apart = XPairs(tokens);
    if (tokens == 1) {
      Vector<Format, X, 1>(job, w, reinterpret_cast<const X*>(x), apart, out);
      continue;
    }
    if (tokens >= 8) {
      GroupTimes<Format, 4>(job, w, x, apart, out, job.out_stride);
      continue;
    }
    // An odd last token has a pair beside it that does not exist; its sums must not be stored.
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

template <class Format, class X>
inline void Tile(const TileJob& job) {
  if (job.tokens == 1) return OneToken<Format, X>(job);
  TileJob rest = job;
  if constexpr (requires { Format::kScaleBytes; })
    if constexpr (Format::kScaleBytes == 2)
      if (const WideTile<Format> wide(job); wide.Fits()) {
        const int done = wide.Run();
        if (done == job.tokens) return;
        rest.tokens -= done;
        rest.x += done / kXUnitTokens * job.x_bytes;
        rest.out += done * job.out_stride;
      }
  for (int g = 0; g < job.groups; ++g)
    GroupTokens<Format, X>(rest, job.w + g * job.group_bytes, rest.out + g * kRows);
}

}  // namespace

void TileByteI8mm(const TileJob& job) {
  Tile<Byte, XPairBlock>(job);
}
void TileByteMinI8mm(const TileJob& job) {
  Tile<ByteMin, XPairBlock>(job);
}
void TileByteWideI8mm(const TileJob& job) {
  Tile<ByteWide, XPairBlock>(job);
}
void TileNibbleI8mm(const TileJob& job) {
  Tile<Nibble, XPairBlock>(job);
}
void TileNibbleMinI8mm(const TileJob& job) {
  Tile<NibbleMin, XPairBlock>(job);
}
void TileLevelsI8mm(const TileJob& job) {
  Tile<Fp4, XPairBlock>(job);
}
void TileLevelsIq4I8mm(const TileJob& job) {
  Tile<Iq4, XPairBlock>(job);
}
void TileSuperQ2I8mm(const TileJob& job) {
  Tile<SuperQ2, XPairSuper>(job);
}
void TileSuperQ3I8mm(const TileJob& job) {
  Tile<SuperQ3, XPairSuper>(job);
}
void TileSuperQ4I8mm(const TileJob& job) {
  Tile<SuperQ4, XPairSuper>(job);
}
void TileSuperQ5I8mm(const TileJob& job) {
  Tile<SuperQ5, XPairSuper>(job);
}
void TileSuperQ6I8mm(const TileJob& job) {
  Tile<SuperQ6, XPairSuper>(job);
}

}  // namespace celer::arm
