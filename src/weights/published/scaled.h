// Matrices whose values have a type of their own and stand row by row, beside a table of scales: the same in
// several families.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weights/published/parts.h"

namespace celer::published {

// A table of scales over a matrix: scale of (row, col) is element (row / block_rows, col / block_cols).
struct ScaleTable {
  const TensorRecord* record = nullptr;
  int64_t block_rows = 1, block_cols = 1;
  int64_t per_line = 1;  // elements from one line of the table to the next

  float At(int64_t row, int64_t group) const { return ScaleAt(*record, row / block_rows * per_line + group); }
};

// The table for a matrix [rows, cols] from its shape: one scale in all, one to a row, or [rows or blocks of
// rows, groups]. `block_rows`, `block_cols`: of blocks; 0 where the configuration has none. An error names
// the shapes.
Result<ScaleTable> ReadScaleTable(const Parts& parts, const TensorRecord& scales, int64_t rows, int64_t cols,
                                  int64_t block_rows, int64_t block_cols);

// fp8 E4M3 [rows, cols] times a scale: floats.
std::unique_ptr<Matrix> MakeFp8(const Parts& parts, const ScaleTable& scales);

// int8 [rows, cols] times a scale: a grid. `zeros` may be null, or int8 of the table's shape.
std::unique_ptr<Matrix> MakeInt8(const Parts& parts, const ScaleTable& scales, const TensorRecord* zeros);

// fp4 E2M1, two to a byte with the even column in the low half; `rows` of `cols`. A scale to 32 columns is a
// power of two (E8M0). A scale to 16 columns is fp8 E4M3 divided by *global.
std::unique_ptr<Matrix> MakeFp4(const Parts& parts, int64_t rows, int64_t cols, const TensorRecord& scales,
                                int64_t group, const TensorRecord* global);

}  // namespace celer::published
