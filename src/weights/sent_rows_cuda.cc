#include "weights/sent_rows.h"

#include <cstring>

#include "weights/repack_cuda.h"

namespace celer {
namespace {

// Rows that are `stride` apart, one after the other.
void CopyRows(const std::byte* from, int64_t stride, int64_t rows, int64_t row_bytes, std::byte* to) {
  if (stride == row_bytes) {
    std::memcpy(to, from, static_cast<size_t>(rows * row_bytes));
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * row_bytes, from + r * stride, static_cast<size_t>(row_bytes));
}

void UnpackRows(const Codec& codec, const WeightView& host, int64_t row, int64_t rows, std::byte* values,
                float* scales) {
  Scaled32 part;
  for (int64_t r = row; r < row + rows; ++r)
    for (int64_t b = 0; b < host.cols / 32; ++b, values += 32) {
      codec.unpack32(host.Row(r), b, &part);
      std::memcpy(values, part.value, 32);
      *scales++ = part.scale[0];
      if (codec.group == 16) *scales++ = part.scale[1];
    }
}

// What the GPU takes rows for that were copied as they are.
DType CopiedType(const WeightView& host) {
  switch (host.kind) {
    case WeightView::Kind::kInt8:
      return DType::kI8;
    case WeightView::Kind::kInt4:
      return DType::kU4;
    case WeightView::Kind::kFp8:
      return DType::kFp8E4M3;
    case WeightView::Kind::kStored:
      break;
  }
  return host.dtype;
}

}  // namespace

SentRows::SentRows(const WeightView& host) : dtype(CopiedType(host)) {
  const bool own = host.kind != WeightView::Kind::kStored;
  if (!own && !cuda::CanRepack(host.dtype)) {
    const Codec* const codec = FindCodec(host.dtype);
    if (codec && codec->unpack32) unpacked = codec;
    decoded = !unpacked;
    dtype = decoded ? DType::kF32 : DType::kI8;
  }
  row_bytes = decoded ? host.cols * 4 : unpacked ? host.cols : host.format().RowBytes(host.cols);
  group = unpacked ? unpacked->group : own ? host.group : 0;
  scale_row_bytes = unpacked ? host.cols / group * 4 : own ? host.groups_per_row() * 4 : 0;
}

void SentRows::Copy(const WeightView& host, int64_t row, int64_t rows, std::byte* to,
                    std::byte* scales) const {
  if (decoded) {
    for (int64_t r = 0; r < rows; ++r)
      DecodeWeightRow(host, row + r, reinterpret_cast<float*>(to) + r * host.cols);
    return;
  }
  if (unpacked) return UnpackRows(*unpacked, host, row, rows, to, reinterpret_cast<float*>(scales));
  CopyRows(host.Row(row), host.row_bytes, rows, row_bytes, to);
  if (scale_row_bytes > 0)
    CopyRows(static_cast<const std::byte*>(host.RowScales(row)),
             host.scale_row_bytes > 0 ? host.scale_row_bytes : scale_row_bytes, rows, scale_row_bytes,
             scales);
}

}  // namespace celer
