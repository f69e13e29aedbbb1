// Requantization: accumulators to 8 bits, with integer arithmetic alone (a fixed-point multiplier). Plain
// types: files with an ISA suffix include this.
//
// The real factor M = multiplier * 2^(left - right - 31) is the ratio of the accumulators' scale to that of
// the output. Every instruction set computes
//
//   y = clamp(zero + floor((saturate(sum * 2^left) * multiplier + 2^(30 + right)) / 2^(31 + right)),
//             low, high)
//
// that is, rounded once, to nearest, ties up. `saturate` is to 32 bits: only accumulators that end at `low`
// or `high` anyway are that large.
#pragma once

#include <stdint.h>

namespace celer {

struct Multiplier {
  int32_t multiplier = 0;  // 2^30 to 2^31, or less where the factor is tiny
  int32_t left = 0;        // 0 to kMostLeft
  int32_t right = 1;       // 1 to 31
};
constexpr int32_t kMostLeft = 24;

static inline int32_t ScaleSum(int32_t sum, int32_t multiplier, int32_t left, int32_t right) {
  int64_t wide = static_cast<int64_t>(sum) * (int64_t{1} << left);
  wide = wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : wide;
  return static_cast<int32_t>((wide * multiplier + (int64_t{1} << (30 + right))) >> (31 + right));
}

// The bounds that bytes are clamped to, and the zero point.
struct ByteRange {
  int32_t zero = 0, low = 0, high = 255;
};
static inline uint8_t ToByte(int32_t scaled, const ByteRange& range) {
  const int64_t y = static_cast<int64_t>(scaled) + range.zero;
  return static_cast<uint8_t>(y < range.low ? range.low : y > range.high ? range.high : y);
}

// One per column, all of them padded with zeros to a multiple of kColumnPad.
struct Requantize {
  const int32_t* bias = nullptr;
  const int32_t* multiplier = nullptr;
  const int32_t* left = nullptr;
  const int32_t* right = nullptr;
  ByteRange range = {};
};
constexpr int64_t kColumnPad = 64;

// y = clamp(zero + floor((a * ma + b * mb + start) / 2^shift)): a sum of two scaled bytes. The factors have
// 15 bits, so that products of 16 bits suffice; `start` has the zero points and the half that rounds.
struct AddBytes {
  const uint8_t *a = nullptr, *b = nullptr;
  bool a_signed = false, b_signed = false;
  int32_t a_factor = 0, b_factor = 0, start = 0, shift = 1;
  ByteRange range = {};
  uint8_t* out = nullptr;
  int64_t n = 0;
};

}  // namespace celer
