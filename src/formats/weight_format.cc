#include "formats/weight_format.h"

#include <cmath>

#include "base/check.h"
#include "formats/decode.h"
#include "formats/fit.h"
#include "formats/float8.h"
#include "formats/int4.h"
#include "formats/int8.h"

namespace celer {
namespace {

void EncodeInt8(const float* row, int64_t cols, int64_t group, std::byte* values, void* scales) {
  EncodeInt8Row({1, cols, group}, row, reinterpret_cast<int8_t*>(values), static_cast<float*>(scales));
}
void DecodeInt8(const std::byte* values, const void* scales, int64_t cols, int64_t group, float* out) {
  DecodeInt8Row({1, cols, group}, reinterpret_cast<const int8_t*>(values), static_cast<const float*>(scales),
                out);
}
void EncodeInt4(const float* row, int64_t cols, int64_t group, std::byte* values, void* scales) {
  EncodeInt4Row({1, cols, group}, row, reinterpret_cast<uint8_t*>(values), static_cast<Int4Group*>(scales));
}
void DecodeInt4(const std::byte* values, const void* scales, int64_t cols, int64_t group, float* out) {
  DecodeInt4Row({1, cols, group}, reinterpret_cast<const uint8_t*>(values),
                static_cast<const Int4Group*>(scales), out);
}

void EncodeFp8(const float* row, int64_t cols, int64_t group, std::byte* values, void* scales) {
  for (int64_t first = 0; first < cols; first += group) {
    const float largest = AbsMax(row + first, group);
    float inverse = largest > 0 ? kFp8Largest / largest : 0.0f;
    if (std::isinf(inverse)) inverse = 0;  // of a subnormal number
    static_cast<float*>(scales)[first / group] = largest / kFp8Largest;
    for (int64_t i = first; i < first + group; ++i)
      values[i] = static_cast<std::byte>(FloatToFp8E4M3(row[i] * inverse));
  }
}
void DecodeFp8(const std::byte* values, const void* scales, int64_t cols, int64_t group, float* out) {
  for (int64_t i = 0; i < cols; ++i)
    out[i] = Fp8E4M3ToFloat(static_cast<uint8_t>(values[i])) * static_cast<const float*>(scales)[i / group];
}

constexpr int64_t kRowOrGroups[] = {0, 32, 64, 128}, kGroups[] = {32, 64, 128};

constexpr WeightKindInfo kKinds[] = {
    {WeightKind::kInt8, "int8", 8, ScaleType::kF32, kRowOrGroups, kAnyFinite, EncodeInt8, DecodeInt8},
    {WeightKind::kFp8, "fp8", 8, ScaleType::kF32, kRowOrGroups, kFp8Range, EncodeFp8, DecodeFp8},
    {WeightKind::kInt4, "int4", 4, ScaleType::kF16Min, kGroups, kInt4Range, EncodeInt4, DecodeInt4},
};

}  // namespace

std::span<const WeightKindInfo> WeightKinds() {
  return kKinds;
}

const WeightKindInfo& WeightFormatSpec::info() const {
  for (const WeightKindInfo& each : kKinds)
    if (each.kind == kind) return each;
  CELER_CHECK(!stored());
  return kKinds[0];
}

ScaleType WeightFormatSpec::scale() const {
  return stored() ? ScaleType::kNone : info().scale;
}

ValueRange WeightFormatSpec::range() const {
  if (!stored()) return info().range;
  return dtype == DType::kF16 ? kHalfRange : dtype == DType::kBf16 ? kBf16Range : kAnyFinite;
}

std::string WeightFormatSpec::Name() const {
  if (stored()) return std::string(celer::Name(dtype));
  return std::string(info().name) + (group > 0 ? "-g" + std::to_string(group) : "");
}

bool WeightFormatSpec::Fits(int64_t cols) const {
  if (stored()) return BytesFor(dtype, cols).has_value();
  return cols >= 0 && cols % ColumnStep() == 0;
}

int64_t WeightFormatSpec::RowBytes(int64_t cols) const {
  CELER_CHECK(Fits(cols));
  return stored() ? *BytesFor(dtype, cols) : cols * info().bits / 8;
}

int64_t WeightFormatSpec::ScaleBytes(int64_t cols) const {
  return GroupsPerRow(cols) * BytesOf(scale());
}

int64_t WeightFormatSpec::GroupsPerRow(int64_t cols) const {
  return stored() ? 0 : group > 0 ? cols / group : 1;
}

int64_t WeightFormatSpec::ColumnStep() const {
  if (stored()) return Info(dtype).block;
  return group > 0 ? group : info().bits < 8 ? 8 / info().bits : 1;
}

void WeightFormatSpec::Encode(const float* row, int64_t cols, std::byte* values, void* scales) const {
  if (stored()) return EncodeRow(dtype, row, cols, values);
  info().encode(row, cols, group > 0 ? group : cols, values, scales);
}

void WeightFormatSpec::Decode(const std::byte* values, const void* scales, int64_t cols, float* out) const {
  if (stored()) return DecodeRow(dtype, values, cols, out);
  info().decode(values, scales, cols, group > 0 ? group : cols, out);
}

bool WeightFormatSpec::operator==(const WeightFormatSpec& other) const {
  if (kind != other.kind) return false;
  return stored() ? dtype == other.dtype : group == other.group;
}

}  // namespace celer
