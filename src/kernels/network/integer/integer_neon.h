// What the Arm kernels share: requantization, rows of a depthwise convolution by dot products over kernel
// rows, and sums of two tensors.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "kernels/network/integer/integer_columns.h"
#include "kernels/network/integer/integer_kernels.h"

namespace celer {
namespace {

// The requantization of a block of columns. `right` is negative: NEON shifts to the left.
template <int kVectors>
struct Columns {
  int32x4_t multiplier[kVectors], left[kVectors], right[kVectors];
  bool shifts = false;  // some `left` is not 0, which is rare

  // Raw accumulators have no multipliers.
  explicit Columns(const Requantize& to, int64_t from = 0) {
    if (!to.multiplier) return;
    for (int i = 0; i < kVectors; ++i) {
      multiplier[i] = vld1q_s32(to.multiplier + from + 4 * i);
      left[i] = vld1q_s32(to.left + from + 4 * i);
      right[i] = vnegq_s32(vld1q_s32(to.right + from + 4 * i));
      shifts = shifts || vmaxvq_s32(left[i]) > 0;
    }
  }
  int32x4_t Scale(int32x4_t sum, int i) const {
    if (shifts) sum = vqshlq_s32(sum, left[i]);
    return vrshlq_s32(vqdmulhq_s32(sum, multiplier[i]), right[i]);
  }
  // Eight columns, from vector i on. Saturation to 16 bits is far outside of any range of bytes.
  uint8x8_t Bytes(int32x4_t a, int32x4_t b, int i, const ByteRange& range) const {
    int16x8_t y = vcombine_s16(vqmovn_s32(Scale(a, i)), vqmovn_s32(Scale(b, i + 1)));
    y = vqaddq_s16(y, vdupq_n_s16(static_cast<int16_t>(range.zero)));
    y = vminq_s16(vmaxq_s16(y, vdupq_n_s16(static_cast<int16_t>(range.low))),
                  vdupq_n_s16(static_cast<int16_t>(range.high)));
    return vreinterpret_u8_s8(vmovn_s16(y));
  }
};

inline void StoreBytes(uint8_t* to, uint8x8_t bytes, int64_t count) {
  if (count >= 8) {
    vst1_u8(to, bytes);
    return;
  }
  uint8_t some[8];
  vst1_u8(some, bytes);
  memcpy(to, some, static_cast<size_t>(count));
}

inline void StoreSums(int32_t* to, int32x4_t low, int32x4_t high, int64_t count) {
  int32_t some[8];
  vst1q_s32(some, low);
  vst1q_s32(some + 4, high);
  memcpy(to, some, static_cast<size_t>(count < 8 ? count : 8) * sizeof(int32_t));
}

// Four kernel rows of one column of 16 channels, interleaved: 64 bytes, the four rows of a channel together.
// `flip` makes bytes signed whose smallest value is 0: x - 128.
inline void Interleave(const uint8_t* const (&rows)[4], uint8_t* to, uint8x16_t flip) {
  uint8x16_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = veorq_u8(vld1q_u8(rows[i]), flip);
  const uint8x16x2_t even = vzipq_u8(r[0], r[2]), odd = vzipq_u8(r[1], r[3]);
  const uint8x16x2_t low = vzipq_u8(even.val[0], odd.val[0]), high = vzipq_u8(even.val[1], odd.val[1]);
  vst1q_u8(to, low.val[0]);
  vst1q_u8(to + 16, low.val[1]);
  vst1q_u8(to + 32, high.val[0]);
  vst1q_u8(to + 48, high.val[1]);
}

// Dot(sum, x, w): a dot product of each four bytes. kW and kGroups are 0 where they are not known.
template <class Dot, int kW, int kGroups>
inline void DepthwiseBlock(const IntegerDepthwise& d, int64_t channel, int64_t lanes, const Dot& dot) {
  const int64_t kernel_w = kW ? kW : d.kernel_w, groups = kGroups ? kGroups : (d.kernel_h + 3) / 4;
  const int64_t step = groups * 64, dilation = d.dilation_w * step;
  const int8_t* const w = d.weights + channel / kDepthBlock * groups * kernel_w * 64;
  const Columns<4> columns(d.to, channel);
  int32x4_t bias[4];
  for (int i = 0; i < 4; ++i) bias[i] = vld1q_s32(d.to.bias + channel + 4 * i);
  for (int64_t ox = 0; ox < d.out_w; ++ox) {
    const uint8_t* const x = d.scratch + ox * d.stride_w * step;
    int32x4_t sum[4] = {bias[0], bias[1], bias[2], bias[3]};
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t kx = 0; kx < kernel_w; ++kx)
        for (int i = 0; i < 4; ++i)
          sum[i] = dot(sum[i], vld1q_u8(x + kx * dilation + g * 64 + 16 * i),
                       vld1q_s8(w + (g * kernel_w + kx) * 64 + 16 * i));
    uint8_t* const out = d.out + ox * d.channels + channel;
    StoreBytes(out, columns.Bytes(sum[0], sum[1], 0, d.to.range), lanes);
    if (lanes > 8) StoreBytes(out + 8, columns.Bytes(sum[2], sum[3], 2, d.to.range), lanes - 8);
  }
}

template <class Dot>
inline void DepthwiseRow(const IntegerDepthwise& d, uint8_t flip, const Dot& dot) {
  EachDepthBlock<4>(d, [&]<int kW, int kGroups>(int64_t channel, int64_t lanes) {
    GatherColumns<4>(d, channel, lanes, [&](const uint8_t* const(&rows)[4], uint8_t* to) {
      Interleave(rows, to, vdupq_n_u8(flip));
    });
    DepthwiseBlock<Dot, kW, kGroups>(d, channel, lanes, dot);
  });
}

inline int16x8_t Widen(uint8x8_t bytes, bool is_signed) {
  return is_signed ? vmovl_s8(vreinterpret_s8_u8(bytes)) : vreinterpretq_s16_u16(vmovl_u8(bytes));
}

inline void RunAdd(const AddBytes& add) {
  const int16x4_t fa = vdup_n_s16(static_cast<int16_t>(add.a_factor)),
                  fb = vdup_n_s16(static_cast<int16_t>(add.b_factor));
  const int32x4_t start = vdupq_n_s32(add.start), shift = vdupq_n_s32(-add.shift);
  const int16x8_t zero = vdupq_n_s16(static_cast<int16_t>(add.range.zero)),
                  low = vdupq_n_s16(static_cast<int16_t>(add.range.low)),
                  high = vdupq_n_s16(static_cast<int16_t>(add.range.high));
  const auto eight = [&](uint8x8_t x, uint8x8_t y) {
    const int16x8_t a = Widen(x, add.a_signed), b = Widen(y, add.b_signed);
    int32x4_t s0 = vmlal_s16(start, vget_low_s16(a), fa), s1 = vmlal_s16(start, vget_high_s16(a), fa);
    s0 = vmlal_s16(s0, vget_low_s16(b), fb);
    s1 = vmlal_s16(s1, vget_high_s16(b), fb);
    const int16x8_t sum = vcombine_s16(vqmovn_s32(vshlq_s32(s0, shift)), vqmovn_s32(vshlq_s32(s1, shift)));
    return vreinterpret_u8_s8(vmovn_s16(vminq_s16(vmaxq_s16(vqaddq_s16(sum, zero), low), high)));
  };
  int64_t i = 0;
  for (; i + 8 <= add.n; i += 8) vst1_u8(add.out + i, eight(vld1_u8(add.a + i), vld1_u8(add.b + i)));
  if (i == add.n) return;
  const auto rest = static_cast<size_t>(add.n - i);
  uint8_t a[8] = {}, b[8] = {}, out[8];
  memcpy(a, add.a + i, rest);
  memcpy(b, add.b + i, rest);
  vst1_u8(out, eight(vld1_u8(a), vld1_u8(b)));
  memcpy(add.out + i, out, rest);
}

}  // namespace
}  // namespace celer
