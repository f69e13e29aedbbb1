// Integer tile kernels for NEON with dot products but without matrix instructions (Neoverse N1, Cortex-A76).
//
// Four columns of four rows lie in one register, and a token's four columns are an element of another: sdot
// by element adds the products of four rows at once, without horizontal reductions. Up to four tokens share
// each load of weights. Integers add exactly in any order, and the floats of one row and token are added
// block by block in one chain in every kernel, so a token's result does not depend on the others in the
// batch.
//
// Such a core has two vector pipes: 16 dot products to a block of 8 rows, 32 columns and a token, two
// subtractions and two products with the scales leave 0.8 of its peak, of which 0.75 is reached.
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#include "kernels/llm/matmul/cpu/arm/four_tokens_dotprod.h"
#include "kernels/llm/matmul/cpu/arm/integer_tile_neon.h"
#include "kernels/llm/matmul/cpu/arm/levels_neon.h"
#include "kernels/llm/matmul/cpu/arm/one_token_dotprod.h"
#include "kernels/llm/matmul/cpu/arm/tile_arm.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

constexpr int kHalves = 2;  // of a row group, four rows each

// f(0) ... f(kCount - 1) with constants.
template <int kCount, class F>
inline __attribute__((always_inline)) void ForEach(F f) {
  [&]<int... kI>(std::integer_sequence<int, kI...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, kI>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

// Values of 32 columns, which are kParts parts of kSteps steps of four columns: one part of four rows. kUnit
// is what the values are too small by; kNibbleX: with activations for nibbles (XTokenBlock,
// XTokenNibbleSuper), which make up for what the halves of bytes are off.
template <bool kOfNibbles>
struct BytesOf {
  static constexpr int kBytes = 32 * kRows, kParts = 8, kSteps = 1;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kNibbleX = kOfNibbles;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    w[0] = vreinterpretq_s8_u8(vld1q_u8(p + part * 32 + half * 16));
  }
};
using Bytes = BytesOf<false>;
struct SignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 4, kSteps = 2;
  static constexpr float kUnit = 1.0f / 16;
  static constexpr bool kNibbleX = false;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 32 + half * 16);
    w[0] = vreinterpretq_s8_u8(vshlq_n_u8(packed, 4));
    w[1] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(0xF0)));
  }
};
// Halves::kMixed: low halves less 8, high ones left where they stand (XTokenBlock).
struct MixedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 4, kSteps = 2;
  static constexpr float kUnit = 1.0f / 16;
  static constexpr bool kNibbleX = true;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 32 + half * 16);
    w[0] = vreinterpretq_s8_u8(veorq_u8(vshlq_n_u8(packed, 4), vdupq_n_u8(0x80)));
    w[1] = vreinterpretq_s8_u8(packed);
  }
};
struct UnsignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 4, kSteps = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kNibbleX = false;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 32 + half * 16);
    w[0] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
    w[1] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
  }
};
// Nibbles that name levels.
template <class Names>
struct LevelNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 4, kSteps = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kNibbleX = false;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 32 + half * 16);
    w[0] = vqtbl1q_s8(Names::Table(), vandq_u8(packed, vdupq_n_u8(15)));
    w[1] = vqtbl1q_s8(Names::Table(), vshrq_n_u8(packed, 4));
  }
};
struct Sixes {
  static constexpr int kBytes = 24 * kRows, kParts = 2, kSteps = 4;
  static constexpr float kUnit = 1.0f / 4;
  static constexpr bool kNibbleX = false;
  static inline void Load(const uint8_t* p, int part, int half, int8x16_t w[kSteps]) {
    uint8x16_t plane[3];
    CELER_UNROLL for (int s = 0; s < 3; ++s) {
      plane[s] = vld1q_u8(p + (part * 3 + s) * 32 + half * 16);
      w[s] = vreinterpretq_s8_u8(vandq_u8(plane[s], vdupq_n_u8(0xFC)));
    }
    uint8x16_t last = vshlq_n_u8(plane[2], 2);
    last = vsliq_n_u8(last, plane[1], 4);
    last = vsliq_n_u8(last, plane[0], 6);
    w[3] = vreinterpretq_s8_u8(last);
  }
};

struct F32x8 {
  float32x4_t half[kHalves];
};
inline F32x8 LoadHalves(const uint8_t* p) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
inline F32x8 LoadSingles(const uint8_t* p) {
  const auto* f = reinterpret_cast<const float*>(p);
  return {vld1q_f32(f), vld1q_f32(f + 4)};
}

// Scales of kScaleBytes, minima of the same size where there are any, in front of `span` columns.
template <class V, int kBytesOfScale, bool kMin>
struct BlockFormat {
  using Values = V;
  static constexpr int kScaleBytes = kBytesOfScale;
  static constexpr bool kHasMin = kMin;
  static constexpr int kMins = kScaleBytes * kRows;
  static constexpr int kHeader = kMins * (kMin ? 2 : 1);
  static inline F32x8 Scales(const uint8_t* p) {
    if constexpr (kScaleBytes == 2) return LoadHalves(p);
    return LoadSingles(p);
  }
};
using Byte = BlockFormat<Bytes, 2, false>;
using ByteMin = BlockFormat<Bytes, 2, true>;
using ByteWide = BlockFormat<Bytes, 4, false>;
using Nibble = BlockFormat<MixedNibbles, 2, false>;
using NibbleMin = BlockFormat<UnsignedNibbles, 2, true>;
using Fp4 = BlockFormat<LevelNibbles<Fp4Levels>, 4, false>;
using Iq4 = BlockFormat<LevelNibbles<Iq4Levels>, 4, false>;

using SuperQ2 = SuperFormat<UnsignedNibbles, 16, true>;
using SuperQ3 = SuperFormat<SignedNibbles, 16, false>;
using SuperQ4 = SuperFormat<MixedNibbles, 8, true>;
using SuperQ5 = SuperFormat<Bytes, 8, true>;
using SuperQ6 = SuperFormat<Sixes, 16, false>;

// 8 rows times 16 columns, those of half a block, of kT tokens whose columns are in x.
template <class Values, int kT>
inline __attribute__((always_inline)) void DotHalf(const uint8_t* p, int half_block, const int8x16_t (&x)[kT],
                                                   int32x4_t (&dot)[kT][kHalves]) {
  constexpr int kParts = Values::kParts / 2;
  ForEach<kParts>([&](auto part) __attribute__((always_inline)) {
    int8x16_t w[kHalves][Values::kSteps];
    CELER_UNROLL for (int h = 0; h < kHalves; ++h) Values::Load(p, half_block * kParts + part, h, w[h]);
    ForEach<Values::kSteps>([&](auto step) __attribute__((always_inline)) {
      CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h) dot[t][h] =
          vdotq_laneq_s32(dot[t][h], w[h][step], x[t], part * Values::kSteps + step);
    });
  });
}

// What is fetched into the L1 cache meanwhile: 128 bytes with each block.
struct Soon {
  const void* from;
  int64_t step;
};

// `spans` spans of `span` columns of a row group times kT tokens, added to sum. Token t's block b is
// x[b * apart + t].
template <class Format, int kT>
inline void Blocks(const uint8_t* w, int64_t spans, int64_t span, const XTokenBlock* x, int apart,
                   const Soon& soon, float32x4_t (&sum)[kT][kHalves]) {
  using Values = typename Format::Values;
  if constexpr (kT == 4 && __is_same(Format, Nibble))  // whose spans are blocks
    return QuadNibbles(w, x, spans, apart, soon.from, soon.step, sum);
  if constexpr (kT == 4 && Values::kSteps == 1 && !(Format::kScaleBytes == 2 && Format::kHasMin)) {
    constexpr QuadHeader kHeader = Format::kHasMin            ? QuadHeader::kSinglesMin
                                   : Format::kScaleBytes == 2 ? QuadHeader::kHalves
                                                              : QuadHeader::kSingles;
    if (span == kBlockCols)
      return QuadBlocks<kHeader, Values::kNibbleX>(w, x, spans, apart, soon.from, soon.step, sum);
  }
  for (int64_t s = 0; s < spans; ++s) {
    const F32x8 scale = Format::Scales(w);
    F32x8 min;
    if constexpr (Format::kHasMin) min = Format::Scales(w + Format::kMins);
    w += Format::kHeader;
    for (int64_t k = 0; k < span; k += kBlockCols, w += Values::kBytes, x += apart) {
      int32x4_t dot[kT][kHalves];
      CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h) dot[t][h] =
          LoadFresh(x[t].start);
      CELER_UNROLL for (int half_block = 0; half_block < 2; ++half_block) {
        int8x16_t columns[kT];
        CELER_UNROLL for (int t = 0; t < kT; ++t) columns[t] = vld1q_s8(x[t].q + 16 * half_block);
        DotHalf<Values, kT>(w, half_block, columns, dot);
      }
      CELER_UNROLL for (int t = 0; t < kT; ++t) {
        const float32x4_t zero = vld1q_f32(Values::kNibbleX ? x[t].zero : x[t].start);
        CELER_UNROLL for (int h = 0; h < kHalves; ++h) sum[t][h] =
            vfmaq_f32(sum[t][h], vsubq_f32(vreinterpretq_f32_s32(dot[t][h]), zero), scale.half[h]);
        if constexpr (Format::kHasMin) {
          const float32x4_t x_sum = vld1q_f32(x[t].sum);
          CELER_UNROLL for (int h = 0; h < kHalves; ++h) sum[t][h] = vfmaq_f32(sum[t][h], min.half[h], x_sum);
        }
      }
    }
  }
}

template <class Format>
using XSuperOf = std::conditional_t<Format::Values::kNibbleX, XTokenNibbleSuper, XTokenSuper>;

// The minima of a super-block's four rows, four sub-blocks to a register, times sums of activations.
template <int kSubs>
inline __attribute__((always_inline)) int32x4_t DotMins(const int8x16_t (&min)[kSubs / 4],
                                                        const XTokenSuper& x) {
  int8x16_t low = vld1q_s8(kSubs == 8 ? x.low32 : x.low16), high = vld1q_s8(x.high16);
  if constexpr (kSubs == 8) high = vextq_s8(low, low, 8);  // both in one register
  int32x4_t dot = vdupq_n_s32(0);
  ForEach<kSubs / 4>([&](auto i)
                         __attribute__((always_inline)) { dot = vdotq_laneq_s32(dot, min[i], high, i); });
  dot = vshlq_n_s32(dot, 6);
  ForEach<kSubs / 4>([&](auto i)
                         __attribute__((always_inline)) { dot = vdotq_laneq_s32(dot, min[i], low, i); });
  return dot;
}
// A super-block's scales, and those of its minima.
struct SuperScales {
  F32x8 d, dmin;
};
template <class Format>
inline SuperScales LoadScales(const uint8_t* head) {
  SuperScales scales = {LoadHalves(head), {}};
  CELER_UNROLL for (float32x4_t& d : scales.d.half) d = vmulq_n_f32(d, Format::Values::kUnit);
  if constexpr (Format::kHasMin) scales.dmin = LoadHalves(head + 2 * kRows);
  return scales;
}
// From integers to floats, less the minima.
template <class Format, int kT>
inline __attribute__((always_inline)) void FinishSuper(const uint8_t* head, const SuperScales& scales,
                                                       const XSuperOf<Format>* x,
                                                       const int32x4_t (&dots)[kT][kHalves],
                                                       float32x4_t (&sum)[kT][kHalves]) {
  constexpr int kRegisters = Format::kHasMin ? Format::kSubs / 4 : 1;
  CELER_UNROLL for (int h = 0; h < kHalves; ++h) {
    int8x16_t min[kRegisters];
    if constexpr (Format::kHasMin)
      CELER_UNROLL for (int i = 0; i < kRegisters; ++i) min[i] =
          vreinterpretq_s8_u8(vld1q_u8(head + Format::kMins + i * 4 * kRows + h * 16));
    CELER_UNROLL for (int t = 0; t < kT; ++t) {
      float32x4_t value = vmulq_f32(vcvtq_f32_s32(dots[t][h]), scales.d.half[h]);
      if constexpr (Format::kHasMin)
        value = vfmsq_f32(value, vcvtq_f32_s32(DotMins<Format::kSubs>(min, x[t])), scales.dmin.half[h]);
      sum[t][h] = vfmaq_n_f32(sum[t][h], value, x[t].scale);
    }
  }
}

// The sub-blocks of a super-block, values from w on, times their scales.
template <class Format, int kT>
inline __attribute__((always_inline)) void SuperDots(const uint8_t* w, const uint8_t* head,
                                                     const XSuperOf<Format>* x,
                                                     int32x4_t (&dots)[kT][kHalves]) {
  using Values = typename Format::Values;
  CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h) dots[t][h] =
      vdupq_n_s32(0);
  for (int b = 0; b < 8; ++b, w += Values::kBytes) {
    int32x4_t dot[kT][kHalves];
    CELER_UNROLL for (int half_block = 0; half_block < 2; ++half_block) {
      if (Format::kSubs == 16 || half_block == 0)
        CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h) {
          dot[t][h] = vdupq_n_s32(0);
          if constexpr (Values::kNibbleX) dot[t][h] = vld1q_s32(x[t].start[b]);
        }
      int8x16_t columns[kT];
      CELER_UNROLL for (int t = 0; t < kT; ++t) columns[t] = vld1q_s8(x[t].q + 32 * b + 16 * half_block);
      DotHalf<Values, kT>(w, half_block, columns, dot);
      if (Format::kSubs == 8 && half_block == 0) continue;
      const int sub = Format::kSubs == 8 ? b : 2 * b + half_block;
      const int16x8_t scale =
          vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(head) + Format::kScales + sub * kRows));
      const int32x4_t scales[kHalves] = {vmovl_s16(vget_low_s16(scale)), vmovl_high_s16(scale)};
      CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h) dots[t][h] =
          vmlaq_s32(dots[t][h], dot[t][h], scales[h]);
    }
  }
}

// The same for `supers` super-blocks. Those `ahead` bytes further are needed next.
template <class Format, int kT>
inline void Supers(const uint8_t* w, int64_t supers, const XSuperOf<Format>* x, int apart, int64_t ahead,
                   float32x4_t (&sum)[kT][kHalves]) {
  for (int64_t s = 0; s < supers; ++s, x += apart) {
    const uint8_t* const head = w;
    w += Format::kHeader;
    int32x4_t dots[kT][kHalves];
    if constexpr (kT == 4 && __is_same(Format, SuperQ4))
      QuadNibbleSuper(w, head + Format::kScales, x, w + ahead, dots);
    else
      SuperDots<Format, kT>(w, head, x, dots);
    w += 8 * Format::Values::kBytes;
    FinishSuper<Format, kT>(head, LoadScales<Format>(head), x, dots, sum);
  }
}

template <class Format, int kT>
inline void Store(const float32x4_t (&sum)[kT][kHalves], float* out, int64_t stride) {
  constexpr bool kSupers = requires {
    Format::kSubs;
  };  // are scaled already
  constexpr float kUnit = kSupers ? 1.0f : Format::Values::kUnit;
  CELER_UNROLL for (int t = 0; t < kT; ++t) CELER_UNROLL for (int h = 0; h < kHalves; ++h)
      vst1q_f32(out + t * stride + 4 * h, vmulq_n_f32(sum[t][h], kUnit));
}

// All columns of a row group times a token for whose nibbles it matters that it is alone in its unit.
inline void LoneGroup(const TileJob& job, const uint8_t* w, const uint8_t* unit, float* out, SuperQ4) {
  NibbleSupers(w, reinterpret_cast<const XTokenNibbleSuper*>(unit), job.cols / kSuperCols, 1, 0, out);
}
inline void LoneGroup(const TileJob& job, const uint8_t* w, const uint8_t* unit, float* out, Nibble) {
  const auto* x = reinterpret_cast<const XTokenBlock*>(unit);
  float32x4_t sum[1][kHalves] = {};
  for (int64_t c = 0; c < job.cols; c += kBlockCols, ++x, w += Nibble::kHeader + MixedNibbles::kBytes) {
    const F32x8 scale = Nibble::Scales(w);
    const int8x16_t columns[2] = {vld1q_s8(x->q), vld1q_s8(x->q + 16)};
    CELER_UNROLL for (int h = 0; h < kHalves; ++h) {
      int32x4_t low = vdupq_n_s32(0), dot = vreinterpretq_s32_f32(vld1q_f32(x->start));
      ForEach<4>([&](auto part) __attribute__((always_inline)) {
        const uint8x16_t packed = vld1q_u8(w + Nibble::kHeader + part * 32 + h * 16);
        const int8x16_t lows = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        low = vdotq_laneq_s32(low, lows, columns[part / 2], part % 2 * 2);
        dot = vdotq_laneq_s32(dot, vreinterpretq_s8_u8(packed), columns[part / 2], part % 2 * 2 + 1);
      });
      dot = vaddq_s32(dot, vshlq_n_s32(low, 4));
      sum[0][h] =
          vfmaq_f32(sum[0][h], vsubq_f32(vreinterpretq_f32_s32(dot), vld1q_f32(x->zero)), scale.half[h]);
    }
  }
  Store<Nibble, 1>(sum, out, 0);
}

// All columns of a row group times kT tokens from `token` on.
template <class Format, int kT>
inline void GroupTimes(const TileJob& job, const uint8_t* w, int token, float* out) {
  const int unit = token / kXUnitTokens * kXUnitTokens, apart = XTokens(job.tokens - unit);
  const uint8_t* const x = job.x + token / kXUnitTokens * job.x_bytes;
  if constexpr (kT == 1 && Format::Values::kNibbleX)
    if (apart == 1) return LoneGroup(job, w, x, out + token * job.out_stride, Format());
  float32x4_t sum[kT][kHalves];
  CELER_UNROLL for (int t = 0; t < kT; ++t) sum[t][0] = sum[t][1] = vdupq_n_f32(0);
  if constexpr (requires { Format::kSubs; }) {
    const auto* const first = reinterpret_cast<const XSuperOf<Format>*>(x) + (token - unit);
    Supers<Format, kT>(w, job.cols / kSuperCols, first, apart, job.group_bytes, sum);
  } else {
    const auto* const first = reinterpret_cast<const XTokenBlock*>(x) + (token - unit);
    const int64_t blocks = job.cols / kBlockCols;
    const Soon next_group = {w + job.group_bytes + token / 4 * blocks * 128, 128};
    if (job.span == kBlockCols)  // a constant for the compiler
      Blocks<Format, kT>(w, blocks, kBlockCols, first, apart, next_group, sum);
    else
      Blocks<Format, kT>(w, job.cols / job.span, job.span, first, apart, next_group, sum);
  }
  Store<Format, kT>(sum, out + token * job.out_stride, job.out_stride);
}

// Tokens [begin, end), four at a time; a unit of activations holds a multiple of that.
template <class Format>
inline void GroupTokens(const TileJob& job, const uint8_t* w, int begin, int end, float* out) {
  static_assert(kXUnitTokens % 4 == 0);
  int t = begin;
  for (; t + 4 <= end; t += 4) GroupTimes<Format, 4>(job, w, t, out);
  if (end - t == 3) return GroupTimes<Format, 3>(job, w, t, out);
  if (end - t == 2) return GroupTimes<Format, 2>(job, w, t, out);
  if (end - t == 1) GroupTimes<Format, 1>(job, w, t, out);
}

// Many tokens: weights are unpacked to bytes and wide scales once for all of them. Cache blocking: columns
// are taken in chunks whose weights (of a job's row groups) and activations (of four tokens) stay in the L1
// cache together.
constexpr int kMaxGroups = 4, kMaxQuads = 32, kChunkCols = 1024;

// The values of 32 columns as bytes.
template <class V>
inline void UnpackValues(const uint8_t* from, uint8_t* to) {
  CELER_UNROLL for (int part = 0; part < V::kParts; ++part) CELER_UNROLL for (int h = 0; h < kHalves; ++h) {
    int8x16_t w[V::kSteps];
    V::Load(from, part, h, w);
    CELER_UNROLL for (int s = 0; s < V::kSteps; ++s)
        vst1q_u8(to + (part * V::kSteps + s) * 32 + h * 16, vreinterpretq_u8_s8(w[s]));
  }
}

// A block, or super-block, of kCols columns of a row group as kBytes bytes.
template <class Format>
struct Plain {
  using X = XTokenBlock;
  using V = typename Format::Values;
  using As = BlockFormat<BytesOf<V::kNibbleX>, 4, Format::kHasMin>;
  static constexpr int64_t kCols = kBlockCols, kBytes = As::kHeader + Bytes::kBytes;
  // `count` of them from `first` on.
  static void Unpack(const TileJob& job, const uint8_t* group, int64_t first, int64_t count, uint8_t* to) {
    const int64_t span_blocks = job.span / kBlockCols;
    const uint8_t* header = group + first / span_blocks * (Format::kHeader + span_blocks * V::kBytes);
    const uint8_t* values = header + Format::kHeader + first % span_blocks * V::kBytes;
    int64_t left = span_blocks - first % span_blocks;  // of the span
    for (int64_t b = 0; b < count; ++b, to += kBytes) {
      for (int i = 0; i < (Format::kHasMin ? 2 : 1); ++i) {
        const F32x8 scales = Format::Scales(header + i * Format::kMins);
        CELER_UNROLL for (int h = 0; h < kHalves; ++h)
            vst1q_f32(reinterpret_cast<float*>(to + i * As::kMins) + 4 * h, scales.half[h]);
      }
      UnpackValues<V>(values, to + As::kHeader);
      values += V::kBytes;
      if (--left > 0) continue;
      header = values;
      values += Format::kHeader;
      left = span_blocks;
    }
  }
  // `count` of them from `first` on times four tokens, added to sum; four tokens' activations from `soon` on
  // are fetched by the job's groups together.
  static void Times(const uint8_t* plain, const uint8_t*, int64_t, int64_t count, const X* x, int apart,
                    const X* soon, int group, float32x4_t (&sum)[4][kHalves]) {
    Blocks<As, 4>(plain, count, kBlockCols, x, apart,
                  {soon + group % 2 * 2, apart * static_cast<int64_t>(sizeof *x)}, sum);
  }
};
template <class Format>
requires requires {
  Format::kSubs;
}
struct Plain<Format> {
  using X = XSuperOf<Format>;
  using V = typename Format::Values;
  static constexpr int64_t kCols = kSuperCols, kSubScales = 8 * Bytes::kBytes,
                           kScales = kSubScales + Format::kSubs * kRows * 4,
                           kBytes = kScales + static_cast<int64_t>(sizeof(SuperScales));
  static void Unpack(const TileJob&, const uint8_t* group, int64_t first, int64_t count, uint8_t* to) {
    const uint8_t* head = group + first * Format::kBytes;
    for (int64_t i = 0; i < count; ++i, head += Format::kBytes, to += kBytes) {
      for (int b = 0; b < 8; ++b)
        UnpackValues<V>(head + Format::kHeader + b * V::kBytes, to + b * Bytes::kBytes);
      *reinterpret_cast<SuperScales*>(to + kScales) = LoadScales<Format>(head);
      auto* const scales = reinterpret_cast<int32_t*>(to + kSubScales);
      for (int j = 0; j < Format::kSubs * kRows; ++j)
        scales[j] = reinterpret_cast<const int8_t*>(head)[Format::kScales + j];
    }
  }
  static void Times(const uint8_t* plain, const uint8_t* group, int64_t first, int64_t count, const X* x,
                    int apart, const X* soon, int index, float32x4_t (&sum)[4][kHalves]) {
    for (int64_t s = 0; s < count; ++s, plain += kBytes, x += apart, soon += apart) {
      const uint8_t* const head = group + (first + s) * Format::kBytes;
      int32x4_t dots[4][kHalves];
      QuadSuper<Format::kSubs>(plain, reinterpret_cast<const int32_t*>(plain + kSubScales), x,
                               soon->q + index % 2 * (4 * sizeof(X) - 1024), dots);
      FinishSuper<Format, 4>(head, *reinterpret_cast<const SuperScales*>(plain + kScales), x, dots, sum);
    }
  }
};

template <class Format>
inline bool WideTile(const TileJob& job) {
  using P = Plain<Format>;
  using X = typename P::X;
  // From where on it is faster: later for what has a loop of its own for four tokens.
  constexpr bool kSupers = P::kCols == kSuperCols, kNibbleX = Format::Values::kNibbleX;
  constexpr bool kOwnLoop = kNibbleX || Format::Values::kSteps == 1;
  constexpr int kFewest = kSupers ? (kNibbleX ? 24 : 12) : (kOwnLoop ? 16 : 8);
  constexpr int64_t kChunk = kChunkCols / P::kCols;
  const int quads = job.tokens / 4;
  if (job.tokens < kFewest || job.groups > kMaxGroups || quads > kMaxQuads) return false;
  alignas(64) static thread_local uint8_t plain[kMaxGroups * kChunk * P::kBytes];
  alignas(64) static thread_local float32x4_t sums[kMaxQuads][kMaxGroups][4][kHalves];
  const int64_t blocks = job.cols / P::kCols;
  for (int64_t first = 0; first < blocks; first += kChunk) {
    const int64_t count = blocks - first < kChunk ? blocks - first : kChunk;
    const bool last = first + count == blocks;
    for (int g = 0; g < job.groups; ++g)
      P::Unpack(job, job.w + g * job.group_bytes, first, count, plain + g * kChunk * P::kBytes);
    const auto x_of = [&](int t) {
      const int unit = t / kXUnitTokens * kXUnitTokens;
      return reinterpret_cast<const X*>(job.x + t / kXUnitTokens * job.x_bytes) +
             first * XTokens(job.tokens - unit) + (t - unit);
    };
    for (int q = 0; q < quads; ++q) {
      const int t = q * 4, apart = XTokens(job.tokens - t / kXUnitTokens * kXUnitTokens);
      const X *const x = x_of(t), *const soon = x_of(q + 1 < quads ? t + 4 : t);
      for (int g = 0; g < job.groups; ++g) {
        float32x4_t(&sum)[4][kHalves] = sums[q][g];
        if (first == 0)
          CELER_UNROLL for (float32x4_t(&token)[kHalves] : sum) token[0] = token[1] = vdupq_n_f32(0);
        P::Times(plain + g * kChunk * P::kBytes, job.w + g * job.group_bytes, first, count, x, apart, soon, g,
                 sum);
        if (last) Store<Format, 4>(sum, job.out + t * job.out_stride + g * kRows, job.out_stride);
      }
    }
  }
  for (int g = 0; g < job.groups; ++g)
    GroupTokens<Format>(job, job.w + g * job.group_bytes, quads * 4, job.tokens, job.out + g * kRows);
  return true;
}

// One token: all of a job's row groups in one loop.
template <int kScaleBytes, bool kMin, class V>
inline bool OneToken(const TileJob& job, BlockFormat<V, kScaleBytes, kMin>) {
  using Format = BlockFormat<V, kScaleBytes, kMin>;
  constexpr bool kBytes = V::kSteps == 1;
  constexpr int64_t kAtOnce = kBytes ? 1 : 2;  // blocks
  constexpr int64_t kStep = kAtOnce * (Format::kHeader + V::kBytes);
  if constexpr (kScaleBytes == 4 || (kBytes && kMin)) return false;
  if (job.tokens != 1 || job.span != kBlockCols || job.cols % (kAtOnce * kBlockCols) != 0) return false;
  const int64_t steps = job.cols / (kAtOnce * kBlockCols), gap = job.round_bytes - steps * kStep;
  const auto* const x = reinterpret_cast<const XTokenBlock*>(job.x);
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* const w = job.w + g * job.group_bytes;
    float* const out = job.out + g * job.rounds * kRows;
    if constexpr (kBytes)
      ByteGroups(w, x, steps, job.rounds, gap, out);
    else if constexpr (kMin)
      NibbleMinGroups(w, x, steps, job.rounds, gap, out);
    else
      NibbleGroups(w, x, steps, job.rounds, gap, out);
  }
  return true;
}
template <class Format, class Loop>
inline bool OneTokenSupers(const TileJob& job, Loop loop) {
  if (job.tokens != 1) return false;
  const int64_t supers = job.cols / kSuperCols;
  for (int g = 0; g < job.groups; ++g)
    loop(job.w + g * job.group_bytes, reinterpret_cast<const XSuperOf<Format>*>(job.x), supers, job.rounds,
         job.round_bytes - supers * Format::kBytes, job.out + g * job.rounds * kRows);
  return true;
}
inline bool OneToken(const TileJob& job, SuperQ4) {
  return OneTokenSupers<SuperQ4>(job, NibbleSupers);
}
inline bool OneToken(const TileJob& job, SuperQ6) {
  return OneTokenSupers<SuperQ6>(job, SixSupers);
}
inline bool OneToken(const TileJob&, ...) {
  return false;
}

template <class Format>
inline void Tile(const TileJob& job) {
  if (WideTile<Format>(job) || OneToken(job, Format())) return;
  for (int i = 0; i < job.rounds; ++i)
    for (int g = 0; g < job.groups; ++g)
      GroupTokens<Format>(job, job.w + i * job.round_bytes + g * job.group_bytes, 0, job.tokens,
                          job.out + (g * job.rounds + i) * kRows);
}

}  // namespace

void TileByteDotprod(const TileJob& job) {
  Tile<Byte>(job);
}
void TileByteMinDotprod(const TileJob& job) {
  Tile<ByteMin>(job);
}
void TileByteWideDotprod(const TileJob& job) {
  Tile<ByteWide>(job);
}
void TileNibbleDotprod(const TileJob& job) {
  Tile<Nibble>(job);
}
void TileNibbleMinDotprod(const TileJob& job) {
  Tile<NibbleMin>(job);
}
void TileLevelsDotprod(const TileJob& job) {
  Tile<Fp4>(job);
}
void TileLevelsIq4Dotprod(const TileJob& job) {
  Tile<Iq4>(job);
}
void TileSuperQ2Dotprod(const TileJob& job) {
  Tile<SuperQ2>(job);
}
void TileSuperQ3Dotprod(const TileJob& job) {
  Tile<SuperQ3>(job);
}
void TileSuperQ4Dotprod(const TileJob& job) {
  Tile<SuperQ4>(job);
}
void TileSuperQ5Dotprod(const TileJob& job) {
  Tile<SuperQ5>(job);
}
void TileSuperQ6Dotprod(const TileJob& job) {
  Tile<SuperQ6>(job);
}

}  // namespace celer::arm
