// A weight matrix as the kernels read it: [rows, cols], rows are output features. It names memory and owns
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "formats/int4.h"

namespace celer {

struct WeightView {
  // kStored: rows of a plain or GGUF block type, exactly as they lie in the file.
  // kInt8, kInt4: celer's own, made while loading; see formats/int8.h and formats/int4.h.
  enum class Kind : uint8_t { kStored, kInt8, kInt4 };

  Kind kind = Kind::kStored;
  DType dtype = DType::kF32;  // of kStored
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;  // [rows, row_bytes]
  int64_t row_bytes = 0;
  const float* scales = nullptr;      // kInt8: [rows, cols / group]
  const Int4Group* params = nullptr;  // kInt4: [rows, cols / group]
  int64_t group = 0;                  // kInt8, kInt4: columns that share a scale
  // The same matrix in the order of the matmul variant in use (kernels/matmul/packed.h), or none. celer's own
  // kinds may exist in this form alone, with data == nullptr.
  const std::byte* packed = nullptr;

  explicit operator bool() const { return data != nullptr || packed != nullptr; }
  const std::byte* Row(int64_t row) const { return data + row * row_bytes; }
  int64_t groups_per_row() const { return group > 0 ? cols / group : 0; }

  // Everything one pass over the matrix must read.
  int64_t bytes() const;
  std::string FormatName() const;  // "q4_1", "int4-g32"

  // Rows [begin, begin + count) as a matrix of their own.
  WeightView Slice(int64_t begin, int64_t count) const;
};

// One row as floats; out holds cols.
void DecodeWeightRow(const WeightView& weight, int64_t row, float* out);

}  // namespace celer
