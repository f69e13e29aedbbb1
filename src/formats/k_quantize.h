// What the encoders of the K formats share. `importance` is nullptr or has one number for each weight.
// 256 weights as groups, each with a small integer scale (and
// minimum) that multiplies one f16 of the block. A format only packs the integers.
#pragma once

#include <cstdint>

namespace celer {

inline constexpr int kKElements = 256;
inline constexpr int kMaxKGroups = 16;

// w ~ d * scale * q - dmin * min, with q in 0..levels, scale and min in 0..top.
struct KAffineBlock {
  uint16_t d, dmin;  // f16
  uint8_t scale[kMaxKGroups], min[kMaxKGroups];
  uint8_t q[kKElements];
};
KAffineBlock QuantizeKAffine(const float* x, const float* importance, int groups, int levels, int top);

// w ~ d * scale * q in 16 groups, with q in -half..half-1 and scale in -top..top-1.
struct KSymmetricBlock {
  uint16_t d;  // f16
  int8_t scale[kMaxKGroups];
  int8_t q[kKElements];
};
KSymmetricBlock QuantizeKSymmetric(const float* x, const float* importance, int half, int top);

}  // namespace celer
