// Outliers: single columns of a packed matrix (packed.h) as floats. Plain declarations only, because files
// built for newer instruction sets include it.
//
// Integer kernels quantize activations to eight bits with one scale to 32 or 256 columns, and in a language
// model a few columns of a token are ten to a hundred times larger than the rest: they make the scale of
// their block so coarse that most of the rounding error of a whole row comes from them. So the outliers of
// each token are taken out before the others are quantized, and are multiplied with their columns in f32.
#pragma once

#include <stdint.h>

namespace celer {

// The list of levels that numbers are the places in: of BlockMxfp4, of BlockIq4Nl.
enum class Levels : uint8_t { kNone, kFp4, kIq4 };

// Where a column stands in every row group, and how its bits become numbers: row r's value is in the word of
// four bytes at values + r * step, or in the one after it. What is left of it after turning over the bits of
// `flip`, shifting to the left and then to the right is the number.
struct PackedColumn {
  int32_t values = 0;
  bool second_word = false;  // of a step of eight bytes
  uint32_t flip = 0;
  int8_t left = 0, right = 0;
  bool is_signed = true;  // no format with a minimum is
  Levels levels = Levels::kNone;
  bool six_in_parts = false;  // two bits each here and one and two steps of all rows further
  bool wide_scale = false;    // f32 instead of f16
  int8_t min_step = 1;        // bytes from one row's sub_min to the next
  int32_t scale = 0;          // offsets of row 0's; those of other rows follow
  int32_t min = -1;           // -1: there is none
  int32_t sub_scale = -1;     // int8: a super-block's
  int32_t sub_min = -1;       // uint8
};

constexpr int kOutliers = 4;  // of one token, at most
// The values of one token that are multiplied apart.
struct TokenOutliers {
  int32_t count;
  int32_t col[kOutliers];
  float value[kOutliers];
};

// What an instruction set brings for them, for groups of `rows` rows.
struct ColumnKernels {
  // sums[g * rows + r] += value[i] * column i's value in row r of group g, one i after the other; groups are
  // `bytes` apart.
  void (*add)(const PackedColumn* columns, const float* values, int count, const uint8_t* group,
              int64_t bytes, int groups, float* sums) = nullptr;
  // out[(g * count + i) * rows + r] = column i's value in row r of group g. All columns are of one format.
  void (*read)(const PackedColumn* columns, int count, const uint8_t* group, int64_t bytes, int groups,
               float* out) = nullptr;
  // sums[t * stride + r] += value[i] of token t * columns[slots[t * kOutliers + i] * rows + r]: the same
  // additions as those of `add`.
  void (*add_read)(const float* columns, const uint16_t* slots, const TokenOutliers* outliers, int tokens,
                   float* sums, int64_t stride) = nullptr;
};

#if defined(__aarch64__)
namespace arm {
extern const ColumnKernels kColumnsStep4, kColumnsStep8;  // 8 rows, `step` bytes of a row together
}
#elif defined(__x86_64__)
namespace x86 {
extern const ColumnKernels kColumnsAvx2;  // 16 rows, 4 bytes of a row together
}
#endif

}  // namespace celer
