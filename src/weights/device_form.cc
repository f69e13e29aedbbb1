#include "weights/device_form.h"

namespace celer::cuda {
namespace {

// What becomes of a file's types; any other is held as f16.
struct StoredForm {
  DType dtype;
  Format format;
  int group;
};
constexpr StoredForm kStoredForms[] = {
    {DType::kF32, Format::kF32, 0},       {DType::kBf16, Format::kBf16, 0},
    {DType::kQ8_0, Format::kInt8, 32},    {DType::kQ4_0, Format::kInt4, 32},
    {DType::kQ4_1, Format::kInt4, 32},    {DType::kQ5_0, Format::kInt8, 32},
    {DType::kQ2_K, Format::kInt4F32, 16}, {DType::kQ3_K, Format::kInt8, 16},
    {DType::kQ4_K, Format::kInt4F32, 32}, {DType::kQ6_K, Format::kInt8, 16},
    {DType::kIq4Nl, Format::kInt8, 32},
};

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
    for (const StoredForm& form : kStoredForms)
      if (form.dtype == format.dtype) return Shaped(form.format, rows, cols, form.group);
    return Shaped(Format::kF16, rows, cols, 0);
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

DeviceMatrix DeviceForm(const WeightPlan& plan, const WeightView& stored, WeightRole otherwise) {
  return DeviceForm(plan.FormatFor(stored.name, stored.format(), stored.cols, otherwise), stored.rows,
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
  }
  return "";
}

}  // namespace celer::cuda
