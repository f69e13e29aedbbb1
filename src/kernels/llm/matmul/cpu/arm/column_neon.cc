#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/llm/matmul/cpu/arm/levels_neon.h"
#include "kernels/llm/matmul/cpu/column.h"
#include "kernels/shared/simd.h"

namespace celer::arm {
namespace {

struct F32x8 {
  float32x4_t lo, hi;
};
struct U32x8 {
  uint32x4_t lo, hi;
};

F32x8 Halves(const uint8_t* p) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
F32x8 Floats(const uint8_t* p) {
  return {vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
}
F32x8 SignedBytes(const uint8_t* p) {
  const int16x8_t v = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
}
// One byte in `step` from eight rows.
F32x8 UnsignedBytes(const uint8_t* p, int step) {
  uint8_t rows[8];
  for (int r = 0; r < 8; ++r) rows[r] = p[r * step];
  const uint16x8_t v = vmovl_u8(vld1_u8(rows));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))};
}

// The first or second words of eight rows, kStep bytes apart.
template <int kStep>
CELER_INLINE U32x8 Words(const uint8_t* p, bool second) {
  const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(p)), b = vreinterpretq_u32_u8(vld1q_u8(p + 16));
  if constexpr (kStep == 4) return {a, b};
  const uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(p + 32)), d = vreinterpretq_u32_u8(vld1q_u8(p + 48));
  if (second) return {vuzp2q_u32(a, b), vuzp2q_u32(c, d)};
  return {vuzp1q_u32(a, b), vuzp1q_u32(c, d)};
}

// What is left of words after both shifts, as floats.
CELER_INLINE F32x8 Shifted(const PackedColumn& c, U32x8 w, int left, bool is_signed) {
  const int32x4_t up = vdupq_n_s32(left), down = vdupq_n_s32(-c.right);
  w = {vshlq_u32(w.lo, up), vshlq_u32(w.hi, up)};
  if (is_signed)
    return {vcvtq_f32_s32(vshlq_s32(vreinterpretq_s32_u32(w.lo), down)),
            vcvtq_f32_s32(vshlq_s32(vreinterpretq_s32_u32(w.hi), down))};
  return {vcvtq_f32_u32(vshlq_u32(w.lo, down)), vcvtq_f32_u32(vshlq_u32(w.hi, down))};
}

template <int kStep>
CELER_INLINE F32x8 Values(const PackedColumn& c, const uint8_t* group, bool is_signed) {
  U32x8 w = Words<kStep>(group + c.values, c.second_word);
  const uint32x4_t flip = vdupq_n_u32(c.flip);
  w = {veorq_u32(w.lo, flip), veorq_u32(w.hi, flip)};
  return Shifted(c, w, c.left, is_signed);
}

// Two bits of each of three bytes, from the top down, come together at the top of a word.
template <int kStep>
F32x8 SixInParts(const PackedColumn& c, const uint8_t* group) {
  U32x8 sum = {vdupq_n_u32(0), vdupq_n_u32(0)};
  for (int i = 0; i < 3; ++i) {
    const U32x8 w = Words<kStep>(group + c.values + i * 8 * kStep, c.second_word);
    const int32x4_t up = vdupq_n_s32(c.left), down = vdupq_n_s32(-2 * i);
    const auto two = [&](uint32x4_t v) {
      return vshlq_u32(vandq_u32(vshlq_u32(v, up), vdupq_n_u32(3u << 30)), down);
    };
    sum = {vorrq_u32(sum.lo, two(w.lo)), vorrq_u32(sum.hi, two(w.hi))};
  }
  return Shifted(c, sum, 0, true);
}

// Places in a list of levels as what stands there.
F32x8 Named(Levels levels, F32x8 places) {
  const uint16x8_t both =
      vcombine_u16(vmovn_u32(vcvtq_u32_f32(places.lo)), vmovn_u32(vcvtq_u32_f32(places.hi)));
  const int8x16_t table = levels == Levels::kFp4 ? Fp4Levels::Table() : Iq4Levels::Table();
  const int16x8_t v = vmovl_s8(vqtbl1_s8(table, vmovn_u16(both)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
}

// Eight rows of any format.
template <int kStep>
inline F32x8 Column(const PackedColumn& c, const uint8_t* group) {
  F32x8 v = c.six_in_parts ? SixInParts<kStep>(c, group) : Values<kStep>(c, group, c.is_signed);
  if (c.levels != Levels::kNone) v = Named(c.levels, v);
  F32x8 scale = c.wide_scale ? Floats(group + c.scale) : Halves(group + c.scale);
  if (c.sub_scale >= 0) {
    const F32x8 sub = SignedBytes(group + c.sub_scale);
    scale = {vmulq_f32(scale.lo, sub.lo), vmulq_f32(scale.hi, sub.hi)};
  }
  v = {vmulq_f32(v.lo, scale.lo), vmulq_f32(v.hi, scale.hi)};
  if (c.min < 0) return v;
  const F32x8 min = Halves(group + c.min);
  if (c.sub_min < 0) return {vaddq_f32(v.lo, min.lo), vaddq_f32(v.hi, min.hi)};
  const F32x8 sub = UnsignedBytes(group + c.sub_min, c.min_step);
  return {vfmsq_f32(v.lo, min.lo, sub.lo), vfmsq_f32(v.hi, min.hi, sub.hi)};
}

// Of a block format with scales in f16: signed if it has no minimum.
template <int kStep, bool kMin>
CELER_INLINE F32x8 BlockColumn(const PackedColumn& c, const uint8_t* group) {
  const F32x8 v = Values<kStep>(c, group, !kMin), scale = Halves(group + c.scale);
  const F32x8 product = {vmulq_f32(v.lo, scale.lo), vmulq_f32(v.hi, scale.hi)};
  if constexpr (!kMin) return product;
  const F32x8 min = Halves(group + c.min);
  return {vaddq_f32(product.lo, min.lo), vaddq_f32(product.hi, min.hi)};
}

template <class Column>
CELER_INLINE void AddAll(const PackedColumn* columns, const float* values, int count, const uint8_t* group,
                         int64_t bytes, int groups, float* sums, Column column) {
  for (int g = 0; g < groups; ++g, group += bytes, sums += 8) {
    float32x4_t lo = vld1q_f32(sums), hi = vld1q_f32(sums + 4);
    for (int i = 0; i < count; ++i) {
      const F32x8 v = column(columns[i], group);
      lo = vfmaq_n_f32(lo, v.lo, values[i]);
      hi = vfmaq_n_f32(hi, v.hi, values[i]);
    }
    vst1q_f32(sums, lo);
    vst1q_f32(sums + 4, hi);
  }
}

// Calls fn with how columns of this one's format are read.
template <int kStep, class Fn>
CELER_INLINE void ByFormat(const PackedColumn& column, Fn fn) {
  if (column.sub_scale >= 0 || column.wide_scale)
    fn([](const PackedColumn& c, const uint8_t* p) { return Column<kStep>(c, p); });
  else if (column.min >= 0)
    fn([](const PackedColumn& c, const uint8_t* p) { return BlockColumn<kStep, true>(c, p); });
  else
    fn([](const PackedColumn& c, const uint8_t* p) { return BlockColumn<kStep, false>(c, p); });
}

template <int kStep>
void Add(const PackedColumn* columns, const float* values, int count, const uint8_t* group, int64_t bytes,
         int groups, float* sums) {
  ByFormat<kStep>(columns[0],
                  [&](auto column) { AddAll(columns, values, count, group, bytes, groups, sums, column); });
}

template <int kStep>
void Read(const PackedColumn* columns, int count, const uint8_t* group, int64_t bytes, int groups,
          float* out) {
  ByFormat<kStep>(columns[0], [&](auto column) {
    for (int i = 0; i < count; ++i) {
      const PackedColumn c = columns[i];
      for (int g = 0; g < groups; ++g) {
        const F32x8 v = column(c, group + g * bytes);
        float* const to = out + (g * count + i) * 8;
        vst1q_f32(to, v.lo);
        vst1q_f32(to + 4, v.hi);
      }
    }
  });
}

void AddRead(const float* columns, const uint16_t* slots, const TokenOutliers* outliers, int tokens,
             float* sums, int64_t stride) {
  for (int t = 0; t < tokens; ++t, slots += kOutliers, sums += stride) {
    const int count = outliers[t].count;
    if (count == 0) continue;
    float32x4_t lo = vld1q_f32(sums), hi = vld1q_f32(sums + 4);
    for (int i = 0; i < count; ++i) {
      const float* const from = columns + 8 * slots[i];
      lo = vfmaq_n_f32(lo, vld1q_f32(from), outliers[t].value[i]);
      hi = vfmaq_n_f32(hi, vld1q_f32(from + 4), outliers[t].value[i]);
    }
    vst1q_f32(sums, lo);
    vst1q_f32(sums + 4, hi);
  }
}

}  // namespace

const ColumnKernels kColumnsStep4 = {Add<4>, Read<4>, AddRead};
const ColumnKernels kColumnsStep8 = {Add<8>, Read<8>, AddRead};

}  // namespace celer::arm
#endif
