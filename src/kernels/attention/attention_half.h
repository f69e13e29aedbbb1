// What both arrangements of f16 arithmetic share (attention_half_lanes.h, attention_half_quads.h); see simd.h
// for the unnamed namespace.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/simd.h"

namespace celer {
namespace {

constexpr int64_t kHalfLanes = 8;

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
  constexpr operator int64_t() const { return kValue; }
};

CELER_INLINE float16x8_t LoadHalf(const uint8_t* p) {
  return vreinterpretq_f16_u8(vld1q_u8(p));
}
// The first n < kHalfLanes elements, zeros behind them.
CELER_INLINE float16x8_t LoadHalfEnd(const uint8_t* p, int64_t n) {
  uint8_t bytes[16] = {};
  memcpy(bytes, p, static_cast<size_t>(n) * 2);
  return LoadHalf(bytes);
}

// sum + a * b[kLane]. The intrinsic of that name becomes a copy of the lane to all others first (g++ 12).
template <int kLane>
CELER_INLINE float16x8_t FmaLane(float16x8_t sum, float16x8_t a, float16x8_t b) {
  asm("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(sum) : "w"(a), "x"(b), "i"(kLane));
  return sum;
}

// The same with eight b, all at once: only so does g++ keep all of them in registers that can be b.
template <int kLane>
CELER_INLINE void FmaLanes(float16x8_t (&sum)[8], float16x8_t a, const float16x8_t (&b)[8]) {
  asm("fmla %0.8h, %8.8h, %9.h[%17]\n\t"
      "fmla %1.8h, %8.8h, %10.h[%17]\n\t"
      "fmla %2.8h, %8.8h, %11.h[%17]\n\t"
      "fmla %3.8h, %8.8h, %12.h[%17]\n\t"
      "fmla %4.8h, %8.8h, %13.h[%17]\n\t"
      "fmla %5.8h, %8.8h, %14.h[%17]\n\t"
      "fmla %6.8h, %8.8h, %15.h[%17]\n\t"
      "fmla %7.8h, %8.8h, %16.h[%17]"
      : "+w"(sum[0]), "+w"(sum[1]), "+w"(sum[2]), "+w"(sum[3]), "+w"(sum[4]), "+w"(sum[5]), "+w"(sum[6]),
        "+w"(sum[7])
      : "w"(a), "x"(b[0]), "x"(b[1]), "x"(b[2]), "x"(b[3]), "x"(b[4]), "x"(b[5]), "x"(b[6]), "x"(b[7]),
        "i"(kLane));
}

// A query times `scale` in f16, brought to [0.5, 1) by a power of two, which is returned. What lies between
// dim and padded becomes zero.
CELER_INLINE float HalfQuery(const float* q, int64_t dim, int64_t padded, float scale, __fp16* out) {
  constexpr int kL = Simd::kLanes;
  const float32x4_t scales = vdupq_n_f32(scale);
  const auto load = [&](int64_t d) {
    return vmulq_f32(d + kL <= dim ? vld1q_f32(q + d) : LoadSome(q + d, dim - d), scales);
  };
  float32x4_t tops = vdupq_n_f32(0);
  for (int64_t d = 0; d < dim; d += kL) tops = vmaxq_f32(tops, vabsq_f32(load(d)));
  const float top = vmaxvq_f32(tops);
  uint32_t bits;
  memcpy(&bits, &top, sizeof bits);
  const uint32_t exponent = bits >> 23;  // top < 2^(exponent - 126)
  float power = 1, inverse = 1;
  if (exponent > 26 && exponent < 226) {
    bits = (exponent + 1) << 23;
    memcpy(&power, &bits, sizeof power);
    bits = (253 - exponent) << 23;
    memcpy(&inverse, &bits, sizeof inverse);
  }
  for (int64_t d = 0; d < padded; d += kL)
    vst1_f16(out + d, d < dim ? vcvt_f16_f32(vmulq_n_f32(load(d), inverse)) : vdup_n_f16(0));
  return power;
}

// What PowersOf() takes for scores in units of `power`, as f16 can hold it: beyond that weights are 1 or 0
// anyway.
struct PowerScale {
  __fp16 scale, low;
  explicit PowerScale(float power) {
    const float held = power > 0x1p15f ? 0x1p15f : power < 0x1p-14f ? 0x1p-14f : power;
    scale = static_cast<__fp16>(held);
    low = static_cast<__fp16>(-25 / held);
  }
};

// to = to * shrink + sum
CELER_INLINE void JoinHalf(float* to, float16x8_t sum, float shrink) {
  const float32x4_t by = vdupq_n_f32(shrink);
  vst1q_f32(to, vfmaq_f32(vcvt_f32_f16(vget_low_f16(sum)), vld1q_f32(to), by));
  vst1q_f32(to + 4, vfmaq_f32(vcvt_high_f32_f16(sum), vld1q_f32(to + 4), by));
}

CELER_INLINE void Transpose8x8(const __fp16* from, int64_t stride, __fp16* to) {
  float16x8_t a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = vld1q_f16(from + i * stride);
  // Each round zips a row with the one four further on; three rounds move every bit of the index to its new
  // place.
  for (int i = 0; i < 4; ++i)
    b[2 * i] = vzip1q_f16(a[i], a[i + 4]), b[2 * i + 1] = vzip2q_f16(a[i], a[i + 4]);
  for (int i = 0; i < 4; ++i)
    a[2 * i] = vzip1q_f16(b[i], b[i + 4]), a[2 * i + 1] = vzip2q_f16(b[i], b[i + 4]);
  for (int i = 0; i < 4; ++i)
    b[2 * i] = vzip1q_f16(a[i], a[i + 4]), b[2 * i + 1] = vzip2q_f16(a[i], a[i + 4]);
  for (int i = 0; i < 8; ++i) vst1q_f16(to + i * 8, b[i]);
}

// int8 with a scale to f16, `padded` elements per row: the half with the bits 0x4800 + u is 8 + u / 128, so
// with u = value + 128 it is value / 128 + 9. A scale times 128 is the largest magnitude of its row, which
// f16 would have to hold as well.
inline void DecodeToHalf(const uint8_t* rows, int64_t row_bytes, const float* scales, int64_t keys,
                         int64_t dim, int64_t padded, __fp16* out) {
  const uint8x16_t flip = vdupq_n_u8(0x80), high = vdupq_n_u8(0x48);
  const float16x8_t nine = vdupq_n_f16(9);
  for (int64_t k = 0; k < keys; ++k) {
    const float16x8_t scale = vdupq_n_f16(static_cast<__fp16>(scales[k] * 128));
    for (int64_t d = 0; d < dim; d += 16) {
      uint8_t end[16] = {};
      const uint8_t* from = rows + k * row_bytes + d;
      if (dim - d < 16) {
        memcpy(end, from, static_cast<size_t>(dim - d));
        from = end;
      }
      const uint8x16_t u = veorq_u8(vld1q_u8(from), flip);
      const float16x8_t lo = vsubq_f16(vreinterpretq_f16_u8(vzip1q_u8(u, high)), nine);
      const float16x8_t hi = vsubq_f16(vreinterpretq_f16_u8(vzip2q_u8(u, high)), nine);
      vst1q_f16(out + k * padded + d, vmulq_f16(lo, scale));
      vst1q_f16(out + k * padded + d + 8, vmulq_f16(hi, scale));
    }
  }
}

// What the tiles with queries in the lanes of scores have in common.
class HalfTile {
 protected:
  static constexpr int64_t kSegments = kSoftmaxKeys / kSegmentKeys;
  static constexpr float kLn2 = 0.693147181f;

  explicit HalfTile(const AttentionTile& tile) : t_(tile), padded_(PaddedDim(tile.head_dim)) {}

  int64_t RowOffset(int64_t key) const { return RowOf(t_, t_.blocks, key); }
  // int8: `keys` rows of `base`, the keys or the values, from `key` on, to `out`, which is returned.
  const uint8_t* Decoded(const uint8_t* base, int64_t key, int64_t keys, __fp16* out) const {
    const int64_t block = BlockOf(t_, key), slot = key - block * t_.block_size;
    const uint8_t* scales =
        base + t_.blocks[block] * t_.block_bytes + t_.scale_offset + slot * int64_t{sizeof(float)};
    DecodeToHalf(base + RowOffset(key), t_.row_bytes, reinterpret_cast<const float*>(scales), keys,
                 t_.head_dim, padded_, out);
    return reinterpret_cast<const uint8_t*>(out);
  }

  const AttentionTile& t_;
  const int64_t padded_;
};

}  // namespace
}  // namespace celer
