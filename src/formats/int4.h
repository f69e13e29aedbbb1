// celer's int4: groups of 32, 64 or 128 consecutive elements of a row share a scale and a zero point.
//
//   values  uint8                [rows, cols / 2]      row-major; element 2i in the low nibble of byte i
//   params  {f16 scale, f16 min} [rows, cols / group]  interleaved, so that one 4-byte load brings both
//
//   w = value * scale + min,  value in 0..15        (min = -zero * scale)
//
// The minimum is stored and not an integer zero point: it costs the same two bytes and leaves the whole range
// of a group representable, also when the range does not contain zero. Kernels use
//   sum(w * x) = scale * sum(value * x) + min * sum(x).
// The encoder chooses scales that are bf16 numbers as well, so that bf16 arithmetic loses nothing by them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace celer {

struct Int4Group {
  uint16_t scale;  // f16
  uint16_t min;    // f16
};
static_assert(sizeof(Int4Group) == 4);

struct Int4Layout {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t group = 0;  // 32, 64 or 128; divides cols

  // nullopt when the group is none of those or does not divide the row.
  static std::optional<Int4Layout> Make(int64_t rows, int64_t cols, int64_t group);

  int64_t groups_per_row() const { return cols / group; }
  int64_t row_bytes() const { return cols / 2; }
  int64_t value_bytes() const { return rows * row_bytes(); }
  int64_t param_bytes() const { return rows * groups_per_row() * static_cast<int64_t>(sizeof(Int4Group)); }
  int64_t total_bytes() const { return value_bytes() + param_bytes(); }
};

// One row; `values` holds row_bytes(), `params` groups_per_row().
void EncodeInt4Row(const Int4Layout& layout, const float* row, uint8_t* values, Int4Group* params);
void DecodeInt4Row(const Int4Layout& layout, const uint8_t* values, const Int4Group* params, float* out);

}  // namespace celer
