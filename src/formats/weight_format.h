// The format of a weight matrix: the one description that names, sizes and ranges come from, on the CPU and
// on a GPU. A file's own types are described by base/dtype.h; celer's own formats by a row each in
// weight_format.cc, so that a new one is a row, an encode and a decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace celer {

// kStored: rows of a plain or GGUF block type, exactly as they lie in a file.
// The others are celer's own, made while loading; see formats/int8.h and formats/int4.h. kFp8 is e4m3 values
// under scales laid out as kInt8's; only a GPU multiplies with it.
enum class WeightKind : uint8_t { kStored, kInt8, kInt4, kFp8 };

// What the values of a group share.
enum class ScaleType : uint8_t {
  kNone,    // nothing, or it is part of a block
  kF32,     // one float
  kF16Min,  // f16 scale and f16 minimum (Int4Group)
};
constexpr int64_t BytesOf(ScaleType type) {
  return type == ScaleType::kNone ? 0 : 4;
}

// The largest magnitude that a format holds.
struct ValueRange {
  float most = std::numeric_limits<float>::max();
  std::string_view holder = {};  // "f16", "int4"; empty: any finite number is held
};
constexpr ValueRange kAnyFinite = {};
constexpr ValueRange kHalfRange = {65504.0f, "f16"};
constexpr ValueRange kInt4Range = {65504.0f, "int4"};  // scales and minima are f16
constexpr ValueRange kBf16Range = {0x1.fep127f, "bf16"};
// 2^120 times a scale must be a finite number (kernels/shared/cuda/fp8.cuh).
constexpr float kFp8Largest = 448, kFp8MostScale = 128;
constexpr ValueRange kFp8Range = {kFp8Largest * kFp8MostScale, "fp8"};

// A scale times 140 must be a finite bf16 (kernels/shared/cuda/fp4.cuh).
constexpr ValueRange kMxfp4Range = {0x1p120f, "mxfp4"};

// One of celer's own formats.
struct WeightKindInfo {
  WeightKind kind;
  std::string_view name;  // "int4"
  int bits;               // of a value
  ScaleType scale;
  // Columns that may share a scale; the first is taken when none is asked for. 0: a whole row.
  std::span<const int64_t> groups;
  ValueRange range;
  // One row of `cols` values in groups of `group` columns, which divides them; `group` is never 0 here.
  void (*encode)(const float* row, int64_t cols, int64_t group, std::byte* values, void* scales);
  void (*decode)(const std::byte* values, const void* scales, int64_t cols, int64_t group, float* out);
};
std::span<const WeightKindInfo> WeightKinds();  // all but kStored

struct WeightFormatSpec {
  WeightKind kind = WeightKind::kStored;
  DType dtype = DType::kF32;  // of kStored
  int64_t group = 0;          // of the others: columns that share a scale; 0: a whole row

  static constexpr WeightFormatSpec Stored(DType dtype) { return {.dtype = dtype}; }

  bool stored() const { return kind == WeightKind::kStored; }
  const WeightKindInfo& info() const;  // of celer's own
  ScaleType scale() const;
  ValueRange range() const;
  std::string Name() const;  // "q4_1", "int8", "int4-g32"

  // Whether rows of this many columns consist of whole blocks and groups. The three below ask for that.
  bool Fits(int64_t cols) const;
  int64_t RowBytes(int64_t cols) const;    // of the values
  int64_t ScaleBytes(int64_t cols) const;  // of what stands beside them
  int64_t GroupsPerRow(int64_t cols) const;

  // Rows can be cut where a multiple of this many columns ends, and the parts are matrices of this format.
  int64_t ColumnStep() const;

  // One row; `scales` holds ScaleBytes(cols), aligned to 4.
  void Encode(const float* row, int64_t cols, std::byte* values, void* scales) const;
  void Decode(const std::byte* values, const void* scales, int64_t cols, float* out) const;

  bool operator==(const WeightFormatSpec& other) const;
};

}  // namespace celer
