#include "base/dtype.h"

#include <cctype>
#include <iterator>

#include "base/check.h"
#include "base/safe_math.h"

namespace celer {
namespace {

constexpr DTypeInfo kInfo[] = {
    {DType::kF32, "f32", 1, 4, 0, 0},
    {DType::kF16, "f16", 1, 2, 1, 1},
    {DType::kBf16, "bf16", 1, 2, 30, 32},
    {DType::kI8, "i8", 1, 1, 24},
    {DType::kU8, "u8", 1, 1},
    {DType::kI16, "i16", 1, 2, 25},
    {DType::kI32, "i32", 1, 4, 26},
    {DType::kI64, "i64", 1, 8, 27},
    {DType::kBool, "bool", 1, 1},
    {DType::kF64, "f64", 1, 8, 28},
    {DType::kFp8E4M3, "fp8_e4m3", 1, 1},
    {DType::kQ4_0, "q4_0", 32, 18, 2, 2},
    {DType::kQ4_1, "q4_1", 32, 20, 3, 3},
    {DType::kQ5_0, "q5_0", 32, 22, 6, 8},
    {DType::kQ5_1, "q5_1", 32, 24, 7, 9},
    {DType::kQ8_0, "q8_0", 32, 34, 8, 7},
    {DType::kQ2_K, "q2_k", 256, 84, 10, 10},
    {DType::kQ3_K, "q3_k", 256, 110, 11, 11},
    {DType::kQ4_K, "q4_k", 256, 144, 12, 14},
    {DType::kQ5_K, "q5_k", 256, 176, 13, 16},
    {DType::kQ6_K, "q6_k", 256, 210, 14, 18},
    {DType::kU16, "u16", 1, 2},
    {DType::kU32, "u32", 1, 4},
    {DType::kU64, "u64", 1, 8},
    {DType::kFp8E4M3Fnuz, "fp8_e4m3fnuz", 1, 1},
    {DType::kFp8E5M2, "fp8_e5m2", 1, 1},
    {DType::kFp8E5M2Fnuz, "fp8_e5m2fnuz", 1, 1},
    {DType::kFp8E8M0, "fp8_e8m0", 1, 1},
    {DType::kFp4E2M1, "fp4_e2m1", 1, 1},
    {DType::kI4, "i4", 1, 1},
    {DType::kU4, "u4", 1, 1},
    {DType::kI2, "i2", 1, 1},
    {DType::kU2, "u2", 1, 1},
    {DType::kIq4Nl, "iq4_nl", 32, 18, 20, 25},
    {DType::kMxfp4, "mxfp4", 32, 17, 39, 38},
    {DType::kIq4Xs, "iq4_xs", 256, 136, 23, 30},
    {DType::kIq3S, "iq3_s", 256, 110, 21, 26},
    {DType::kIq3Xxs, "iq3_xxs", 256, 98, 18, 23},
    {DType::kIq2S, "iq2_s", 256, 82, 22, 28},
    {DType::kIq2Xs, "iq2_xs", 256, 74, 17, 20},
    {DType::kIq2Xxs, "iq2_xxs", 256, 66, 16, 19},
    {DType::kIq1S, "iq1_s", 256, 50, 19, 24},
    {DType::kIq1M, "iq1_m", 256, 56, 29, 31},
    {DType::kTq1_0, "tq1_0", 256, 54, 34, 36},
    {DType::kTq2_0, "tq2_0", 256, 66, 35, 37},
    {DType::kNvfp4, "nvfp4", 64, 36, 40, 39},
};
static_assert([] {
  for (size_t i = 0; i < std::size(kInfo); ++i)
    if (kInfo[i].dtype != static_cast<DType>(i)) return false;
  return true;
}());

}  // namespace

const DTypeInfo& Info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  CELER_CHECK_LT(index, std::size(kInfo));
  return kInfo[index];
}

std::span<const DTypeInfo> DTypes() {
  return kInfo;
}

std::optional<int64_t> BytesFor(DType dtype, int64_t elements) {
  const DTypeInfo& info = Info(dtype);
  if (elements < 0 || elements % info.block != 0) return std::nullopt;
  return CheckedMul(elements / info.block, info.block_bytes);
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kInfo) {
    const std::string_view candidate = info.name;
    if (candidate.size() != name.size()) continue;
    bool equal = true;
    for (size_t j = 0; j < name.size(); ++j)
      equal = equal && std::tolower(static_cast<unsigned char>(name[j])) == candidate[j];
    if (equal) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace celer
