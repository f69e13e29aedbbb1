// A weight matrix in the memory of a GPU: [rows, cols], rows are output features. It names memory and owns
// none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/shared/cuda/formats.h"

namespace celer::cuda {

// In the order in which the kernels' threads read: rows in eights, columns padded with zeros to whole blocks
// of 128. The 64 bytes that eight rows have at one place follow each other (512 bytes: 16 for each lane of a
// warp, lane 4g + t takes the t-th quarter of row g), then come the next 64 of each, so that any run of
// columns of eight rows is contiguous. Within a row:
//   kF32, kF16, kBf16   plain order
//   kInt8   within each 64 columns, the 8-byte unit (j, t) lies at t * 2 + j, j of 2 runs of 32 columns
//   kFp8    as kInt8, with the middle two of every four bytes exchanged: columns 0, 2, 1, 3 (fp8.cuh)
//   kInt4   within each 128 columns, the 4-byte word (j, t) lies at t * 4 + j, j of 4 runs of 32 columns;
//           element 2i of a word in the low nibble of byte i
//   kMxfp4  as kInt4
// With that, the 16 bytes of a lane belong to 2 (or 4) products of 32 columns, each inside one group of a
// group-quantized row, or of two groups of 16 that lie with lanes t < 2 and with the others.
struct DeviceMatrix {
  Format format = Format::kBf16;
  int rows = 0;
  int cols = 0;
  int padded = 0;  // columns, a multiple of 128
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;  // a multiple of 64
  // What a scale is: formats.h. group > 0: [ceil(rows / 8), padded / group, 8], so that the scales of eight
  // rows of a tile lie together; group = 0 (kInt8 and kFp8): [rows], one per output channel.
  const std::byte* scales = nullptr;
  int group = 0;

  explicit operator bool() const { return data != nullptr; }
  constexpr int groups_per_row() const { return group > 0 ? padded / group : 0; }
  constexpr int64_t data_bytes() const { return static_cast<int64_t>(rows + 7) / 8 * 8 * row_bytes; }
  // Where a byte of a row lies.
  constexpr int64_t Offset(int row, int64_t byte) const {
    return row / 8 * 8 * row_bytes + byte / 64 * 512 + row % 8 * 64 + byte % 64;
  }
  // What one pass over the matrix must read.
  int64_t bytes() const;
};

constexpr int kColumnPad = 128;
inline int64_t PaddedRowBytes(Format format, int64_t cols) {
  return (cols + kColumnPad - 1) / kColumnPad * kColumnPad * BitsOf(format) / 8;
}
inline int64_t ScaleArrayBytes(Format format, int64_t rows, int64_t padded, int64_t group) {
  if (ScaleBytesOf(format) == 0) return 0;
  return group > 0 ? (rows + 7) / 8 * 8 * (padded / group) * ScaleBytesOf(format) : (rows + 7) / 8 * 8 * 4;
}
inline int64_t DeviceMatrix::bytes() const {
  return data_bytes() + ScaleArrayBytes(format, rows, padded, group);
}

}  // namespace celer::cuda
