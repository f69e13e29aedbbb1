// Values and scales of the formats with blocks of 32 columns, as matrix instructions read them. Part of
// tile_integer_arm_i8mm.cc.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/byte_loops_i8mm.h"
#include "kernels/llm/matmul/cpu/arm/integer_tile_neon.h"
#include "kernels/llm/matmul/cpu/arm/levels_neon.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

constexpr int kPairs = 4;  // of rows

inline int8x16_t LoadS8(const uint8_t* p) {
  return vld1q_s8(reinterpret_cast<const int8_t*>(p));
}
// Values of 32 columns, which are kParts parts of kSteps steps of 8 columns: one part of a row pair. kUnit is
// what the values are too small by; of kUnsigned ones bytes are unsigned.
struct Bytes {
  static constexpr int kBytes = 32 * kRows, kParts = 4, kSteps = 1;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kUnsigned = false;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    w[0] = LoadS8(p + part * 64 + pair * 16);
  }
};
struct SignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f / 16;
  static constexpr bool kUnsigned = false;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vreinterpretq_s8_u8(vshlq_n_u8(packed, 4));
    w[1] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(0xF0)));
  }
};
struct UnsignedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kUnsigned = false;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
    w[1] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
  }
};
// Nibbles that name levels.
template <class Names>
struct LevelNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f;
  static constexpr bool kUnsigned = false;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vqtbl1q_s8(Names::Table(), vandq_u8(packed, vdupq_n_u8(15)));
    w[1] = vqtbl1q_s8(Names::Table(), vshrq_n_u8(packed, 4));
  }
};
// The bytes of UnsignedNibbles for activations of kNibbles and kNibblesMin.
struct PairedNibbles {
  static constexpr int kBytes = 16 * kRows, kParts = 2, kSteps = 2;
  static constexpr float kUnit = 1.0f / 16;
  static constexpr bool kUnsigned = true;
  static inline void Load(const uint8_t* p, int part, int pair, int8x16_t w[kSteps]) {
    const uint8x16_t packed = vld1q_u8(p + part * 64 + pair * 16);
    w[0] = vreinterpretq_s8_u8(vshlq_n_u8(packed, 4));
    w[1] = vreinterpretq_s8_u8(packed);
  }
};
struct Sixes {
  static constexpr int kBytes = 24 * kRows, kParts = 1, kSteps = 4;
  static constexpr float kUnit = 1.0f / 4;
  static constexpr bool kUnsigned = false;
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

template <class V, int kBytesOfScale, Extra kExtraOf>
struct BlockFormat {
  static constexpr int kScaleBytes = kBytesOfScale;
  using Values = V;
  static constexpr Extra kExtra = kExtraOf;
  static constexpr bool kHasMin = kExtra == Extra::kMin;
  static constexpr int kHeader = (kScaleBytes + (kHasMin ? 2 : 0)) * kRows;
  static inline F32x8 Scales(const uint8_t* header) {
    if constexpr (kScaleBytes == 2) return LoadHalves(header);
    const auto* p = reinterpret_cast<const float*>(header);
    return {vld1q_f32(p), vld1q_f32(p + 4)};
  }
  static inline F32x8 Mins(const uint8_t* header) { return LoadHalves(header + kScaleBytes * kRows); }
  // What is to be subtracted from the sums of a lone token, or of both tokens.
  static inline float32x4_t Zero(const XPairBlock& x) {
    return vdupq_n_f32(kExtra == Extra::kExcess ? x.zero[0] : x.start[0]);
  }
  static inline float32x4_t Zeros(const XPairBlock& x) {
    return vld1q_f32(kExtra == Extra::kExcess ? x.zero : x.start);
  }
};
using Byte = BlockFormat<Bytes, 2, Extra::kNone>;
using ByteMin = BlockFormat<Bytes, 2, Extra::kMin>;
using ByteWide = BlockFormat<Bytes, 4, Extra::kNone>;
using Nibble = BlockFormat<PairedNibbles, 2, Extra::kExcess>;
using NibbleMin = BlockFormat<PairedNibbles, 2, Extra::kMin>;
using Fp4 = BlockFormat<LevelNibbles<Fp4Levels>, 4, Extra::kNone>;
using Iq4 = BlockFormat<LevelNibbles<Iq4Levels>, 4, Extra::kNone>;

// A row pair's factors as [0 0 1 1], from those of a group: kP pairs from `pair` on.
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

}  // namespace
}  // namespace celer::arm
