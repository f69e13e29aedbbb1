#include "weights/published/matrix.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "formats/int4.h"
#include "io/file/printable.h"

namespace celer::published {
namespace {

bool ExactF16(float value) {
  return std::isfinite(value) && F16ToFloat(FloatToF16(value)) == value;
}

// What all groups of a matrix allow.
struct Allowed {
  bool nibbles = true;  // scale and minimum are f16 numbers
  bool bytes = true;    // q - zero fits
};

// Groups of celer's own that divide the file's: as large as there are. 0: a whole row.
int64_t OwnGroup(int64_t group, int64_t cols) {
  const int64_t common = group >= cols ? cols : std::gcd(group, cols);
  for (const int64_t own : {128, 64, 32})
    if (common % own == 0) return own;
  return 0;
}

}  // namespace

void Matrix::Integers(int64_t, int16_t*) const {
  CELER_CHECK(false);
}

void Matrix::Groups(int64_t, float*, int16_t*) const {
  CELER_CHECK(false);
}

void Matrix::Floats(int64_t row, float* out) const {
  std::vector<int16_t> q(cols), zeros(groups());
  std::vector<float> scales(zeros.size());
  Integers(row, q.data());
  Groups(row, scales.data(), zeros.data());
  for (int64_t c = 0; c < cols; ++c) {
    const auto g = static_cast<size_t>(order.empty() ? c / group : order[c]);
    out[c] = static_cast<float>(q[c] - zeros[g]) * scales[g];
  }
}

void Matrix::Blocks(int64_t, std::byte*) const {
  CELER_CHECK(false);
}

void Matrix::Codes(int64_t, std::byte*, float*) const {
  CELER_CHECK(false);
}

Status Matrix::CheckScales(const std::string&) const {
  return {};
}

Error Matrix::BadScale(const std::string& path, std::string_view part, int64_t row, int64_t group_index,
                       float value) const {
  return Error::Corrupt(path, ": tensor '", Printable(name), "': the scale of row ", row, ", group ",
                        group_index, " in '", Printable(part), "' is ",
                        std::isnan(value) ? "nan"
                        : value > 0       ? "inf"
                                          : "-inf",
                        ", which is not a finite number; the file is damaged: fetch or write it again");
}

Status Matrix::ChooseFormat(const std::string& path, bool keep_fp8) {
  if (group == 0) {
    CELER_RETURN_IF_ERROR(CheckScales(path));
    format = WeightFormatSpec::Stored(floats);
    if (fp8_group == 0) return {};
    const bool rows_alike = fp8_group >= cols;
    const int64_t own = rows_alike ? 0 : OwnGroup(fp8_group, cols);
    if (!rows_alike && own == 0) {
      note = "its groups are no multiple of 32 columns";
    } else if (keep_fp8) {
      format = {.kind = WeightKind::kFp8, .group = own};
      note.clear();
    }
    return {};
  }
  Allowed allowed;
  std::vector<float> scales(groups());
  std::vector<int16_t> zeros(scales.size());
  for (int64_t row = 0; row < count * rows; ++row) {
    Groups(row, scales.data(), zeros.data());
    for (size_t g = 0; g < scales.size(); ++g) {
      if (!std::isfinite(scales[g]))
        return BadScale(path, parts.size() > 1 ? parts[1]->name : name, row, static_cast<int64_t>(g),
                        scales[g]);
      allowed.nibbles &= ExactF16(scales[g]) && ExactF16(static_cast<float>(low - zeros[g]) * scales[g]);
      allowed.bytes &= low - zeros[g] >= -128 && high - zeros[g] <= 127;
    }
  }
  if (mxfp4 && (count > 1 || !keep_fp8)) {
    format = WeightFormatSpec::Stored(DType::kMxfp4);
    note.clear();
    return {};
  }
  const int64_t own = OwnGroup(group, cols);
  const bool small = high - low <= 15;
  if (!order.empty()) {
    format = WeightFormatSpec::Stored(DType::kF32);
    note = "act-order puts the columns of a group anywhere";
  } else if (small && own > 0 && allowed.nibbles) {
    format = {.kind = WeightKind::kInt4, .group = own};
  } else if (allowed.bytes && (group >= cols || cols % group == 0 || own > 0)) {
    format = {.kind = WeightKind::kInt8, .group = group >= cols ? 0 : own > 0 ? own : group};
    if (small && own == 0)
      note = "its groups are no multiple of 32 columns";
    else if (small)
      note = "zero point times scale is not an f16 number, which int4's minimum is";
  } else {
    format = WeightFormatSpec::Stored(DType::kF32);
    note = allowed.bytes ? "its groups do not divide its columns"
                         : "its integers less their zero points exceed a byte";
  }
  return {};
}

void Matrix::Row(int64_t row, std::byte* values, void* scales) const {
  if (format.kind == WeightKind::kFp8) return Fp8Row(row, values, static_cast<float*>(scales));
  if (!format.stored()) return GridRow(row, values, scales);
  if (format.dtype == DType::kMxfp4) return Blocks(row, values);
  if (format.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(values) % alignof(float) == 0)
    return Floats(row, reinterpret_cast<float*>(values));
  std::vector<float> out(cols);
  Floats(row, out.data());
  EncodeRow(format.dtype, out.data(), cols, values);
}

void Matrix::Fp8Row(int64_t row, std::byte* values, float* scales) const {
  std::vector<float> file_scales((cols + fp8_group - 1) / fp8_group);
  Codes(row, values, file_scales.data());
  const int64_t own = format.group > 0 ? format.group : cols;
  for (int64_t first = 0; first < cols; first += own) scales[first / own] = file_scales[first / fp8_group];
}

void Matrix::GridRow(int64_t row, std::byte* values, void* scales) const {
  std::vector<int16_t> q(cols), zeros(groups());
  std::vector<float> file_scales(zeros.size());
  Integers(row, q.data());
  Groups(row, file_scales.data(), zeros.data());
  const int64_t own = format.group > 0 ? format.group : cols;
  for (int64_t first = 0; first < cols; first += own) {
    const auto g = static_cast<size_t>(first / group);
    const int16_t* in = q.data() + first;
    if (format.kind == WeightKind::kInt4) {
      Int4Group& shared = static_cast<Int4Group*>(scales)[first / own];
      shared.scale = FloatToF16(file_scales[g]);
      shared.min = FloatToF16(static_cast<float>(low - zeros[g]) * file_scales[g]);
      for (int64_t i = 0; i < own; i += 2)
        values[(first + i) / 2] = static_cast<std::byte>((in[i] - low) | (in[i + 1] - low) << 4);
    } else {
      static_cast<float*>(scales)[first / own] = file_scales[g];
      for (int64_t i = 0; i < own; ++i) values[first + i] = static_cast<std::byte>(in[i] - zeros[g]);
    }
  }
}

}  // namespace celer::published
