#include "weights/device_form.h"

#include "formats/codec.h"

namespace celer::cuda {
namespace {

DeviceMatrix Shaped(Format format, int64_t rows, int64_t cols, int64_t group) {
  DeviceMatrix m;
  m.format = format;
  m.rows = static_cast<int>(rows);
  m.cols = static_cast<int>(cols);
  m.padded = static_cast<int>((cols + kColumnPad - 1) / kColumnPad * kColumnPad);
  m.row_bytes = PaddedRowBytes(format, cols);
  m.group = static_cast<int>(group);
  return m;
}

}  // namespace

DeviceMatrix DeviceForm(const WeightFormatSpec& format, int64_t rows, int64_t cols) {
  if (format.stored()) {
    if (format.dtype == DType::kF32) return Shaped(Format::kF32, rows, cols, 0);
    if (format.dtype == DType::kBf16) return Shaped(Format::kBf16, rows, cols, 0);
    if (format.dtype == DType::kMxfp4) return Shaped(Format::kMxfp4, rows, cols, 32);
    const Codec* codec = FindCodec(format.dtype);
    const Format held = codec && codec->bits > 0
                            ? FormatOfBlocks(codec->bits, codec->has_min, codec->subs > 0)
                            : Format::kF16;
    return Shaped(held, rows, cols, HasScales(held) ? codec->group : 0);
  }
  // Products take 32 columns at a time, and groups do not cross the 128 that share a scale of the
  // activations. A file's own int8 can have others.
  const int64_t group = format.group;
  if (group != 0 && group != 32 && group != 64 && group != 128) return Shaped(Format::kF32, rows, cols, 0);
  return Shaped(format.kind == WeightKind::kInt4  ? Format::kInt4
                : format.kind == WeightKind::kFp8 ? Format::kFp8
                                                  : Format::kInt8,
                rows, cols, group);
}

DeviceMatrix DeviceForm(const WeightPlan& plan, const WeightView& stored, WeightRole default_role) {
  return DeviceForm(plan.FormatFor(stored.name, stored.format(), stored.cols, default_role), stored.rows,
                    stored.cols);
}

ValueRange RangeOf(Format format) {
  switch (format) {
    case Format::kF16:
      return kHalfRange;
    case Format::kInt4:
      return kInt4Range;
    case Format::kBf16:
      return kBf16Range;
    case Format::kFp8:
      return kFp8Range;
    case Format::kMxfp4:
      return kMxfp4Range;
    case Format::kF32:
    case Format::kInt8:
    case Format::kInt4F32:
      break;
  }
  return kAnyFinite;
}

std::string FormatName(const DeviceMatrix& m) {
  switch (m.format) {
    case Format::kF32:
      return "f32";
    case Format::kF16:
      return "f16";
    case Format::kBf16:
      return "bf16";
    case Format::kInt8:
      return m.group > 0 ? "int8-g" + std::to_string(m.group) : "int8";
    case Format::kFp8:
      return m.group > 0 ? "fp8-g" + std::to_string(m.group) : "fp8";
    case Format::kInt4:
      return "int4-g" + std::to_string(m.group);
    case Format::kInt4F32:
      return "int4-g" + std::to_string(m.group) + " with f32 scales";
    case Format::kMxfp4:
      return "mxfp4";
  }
  return "";
}

}  // namespace celer::cuda
