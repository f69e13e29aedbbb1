#include "base/dtype.h"

#include <cctype>
#include <iterator>

#include "base/check.h"
#include "base/safe_math.h"

namespace celer {
namespace {

constexpr DTypeInfo kInfo[] = {
    {"f32", 1, 4},          {"f16", 1, 2},      {"bf16", 1, 2},         {"i8", 1, 1},
    {"u8", 1, 1},           {"i16", 1, 2},      {"i32", 1, 4},          {"i64", 1, 8},
    {"bool", 1, 1},         {"f64", 1, 8},      {"fp8_e4m3", 1, 1},     {"q4_0", 32, 18},
    {"q4_1", 32, 20},       {"q5_0", 32, 22},   {"q5_1", 32, 24},       {"q8_0", 32, 34},
    {"q2_k", 256, 84},      {"q3_k", 256, 110}, {"q4_k", 256, 144},     {"q5_k", 256, 176},
    {"q6_k", 256, 210},     {"u16", 1, 2},      {"u32", 1, 4},          {"u64", 1, 8},
    {"fp8_e4m3fnuz", 1, 1}, {"fp8_e5m2", 1, 1}, {"fp8_e5m2fnuz", 1, 1}, {"fp8_e8m0", 1, 1},
    {"fp4_e2m1", 1, 1},     {"i4", 1, 1},       {"u4", 1, 1},           {"i2", 1, 1},
    {"u2", 1, 1},           {"iq4_nl", 32, 18},
};
static_assert(std::size(kInfo) == static_cast<size_t>(DType::kIq4Nl) + 1);

}  // namespace

const DTypeInfo& Info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  CELER_CHECK_LT(index, std::size(kInfo));
  return kInfo[index];
}

std::optional<int64_t> BytesFor(DType dtype, int64_t elements) {
  const DTypeInfo& info = Info(dtype);
  if (elements < 0 || elements % info.block != 0) return std::nullopt;
  return CheckedMul(elements / info.block, info.block_bytes);
}

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < std::size(kInfo); ++i) {
    const std::string_view candidate = kInfo[i].name;
    if (candidate.size() != name.size()) continue;
    bool equal = true;
    for (size_t j = 0; j < name.size(); ++j)
      equal = equal && std::tolower(static_cast<unsigned char>(name[j])) == candidate[j];
    if (equal) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace celer
