// celer's int8: symmetric, one scale per group of consecutive elements of a row (a row is one output
// channel).
//
//   values  int8  [rows, cols]           row-major, -127..127; files that others quantized may have -128 too
//   scales  f32   [rows, cols / group]   group == cols means one scale per output channel
//
//   w = value * scale
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace celer {

struct Int8Layout {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t group = 0;  // divides cols

  // group 0 asks for one scale per output channel. nullopt when the group does not divide the row.
  static std::optional<Int8Layout> Make(int64_t rows, int64_t cols, int64_t group = 0);

  int64_t groups_per_row() const { return cols / group; }
  int64_t row_bytes() const { return cols; }
  int64_t value_bytes() const { return rows * cols; }
  int64_t scale_bytes() const { return rows * groups_per_row() * static_cast<int64_t>(sizeof(float)); }
  int64_t total_bytes() const { return value_bytes() + scale_bytes(); }
};

// One row; `scales` holds groups_per_row() floats. |w - decoded| <= scale / 2 for finite input.
void EncodeInt8Row(const Int8Layout& layout, const float* row, int8_t* values, float* scales);
void DecodeInt8Row(const Int8Layout& layout, const int8_t* values, const float* scales, float* out);

}  // namespace celer
