// A non-owning view of a weight matrix as the kernels read it: [rows, cols], rows are output features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"
#include "formats/weight_format.h"

namespace celer {

struct MatmulKernels;  // kernels/llm/matmul/matmul.h

struct WeightView {
  using Kind = WeightKind;

  Kind kind = Kind::kStored;
  DType dtype = DType::kF32;  // of kStored
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;  // from one row of data to the next; more than a row has in a slice of columns
  const void* scales = nullptr;  // celer's own kinds: [rows, cols / group] of the kind's ScaleType
  int64_t group = 0;             // of those: columns that share a scale
  int64_t scale_row_bytes = 0;   // from one row's scales to the next; 0: nothing is between them
  // The same matrix in the order of one matmul variant (kernels/llm/matmul/cpu/packed.h), or none. celer's own
  // kinds may exist in this form alone, with data == nullptr. PackedView() sets the three together.
  const std::byte* packed = nullptr;
  const MatmulKernels* packed_for = nullptr;  // the variant that packed it, and that multiplies with it
  int64_t packed_group_bytes = 0;             // from one group of its interleaved rows to the next
  std::string_view name = {};  // of the tensor in its file, which keeps it; for error sentences

  explicit operator bool() const { return data != nullptr || packed != nullptr; }
  const std::byte* Row(int64_t row) const { return data + row * row_bytes; }
  const void* RowScales(int64_t row) const;
  int64_t groups_per_row() const { return group > 0 ? cols / group : 0; }

  WeightFormatSpec format() const { return {kind, dtype, group == cols ? 0 : group}; }
  std::string FormatName() const { return format().Name(); }  // "q4_1", "int4-g32"
  bool contiguous() const;  // in data and scales, rows follow each other with nothing between them

  // Everything one pass over the matrix must read.
  int64_t bytes() const;

  // Rows or columns [begin, begin + count) as a matrix over the same memory; an error where the format cannot
  // be cut. Where only the packed form cannot, the slice has the stored form alone, which any variant
  // multiplies with, slowly: slice before packing, or at multiples of PackedGrid.
  Result<WeightView> SliceRows(int64_t begin, int64_t count) const;
  Result<WeightView> SliceColumns(int64_t begin, int64_t count) const;
};

// One row as floats; out holds cols.
void DecodeWeightRow(const WeightView& weight, int64_t row, float* out);

}  // namespace celer
