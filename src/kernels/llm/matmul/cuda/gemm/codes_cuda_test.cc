// What lies between products of 8-bit codes.
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <optional>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

double FromE4M3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

// Every 64 columns times Hadamard's matrix: element (i, j) has the sign of how many bits i and j share.
std::vector<double> Rotated(const std::vector<double>& row) {
  std::vector<double> out(row.size());
  for (size_t i = 0; i < row.size(); ++i)
    for (size_t j = 0; j < 64; ++j) {
      const double v = row[i / 64 * 64 + j] / 8;
      out[i] += std::popcount(i % 64 & j) % 2 == 0 ? v : -v;
    }
  return out;
}

// Codes times their scale are the values: to half a unit in the last of four bits, or of the smallest codes,
// in fp8, and to half a step in int8, which holds them rotated.
void ExpectRow(Code code, std::vector<double> wanted, const uint8_t* codes, int padded, float scale) {
  wanted.resize(static_cast<size_t>(padded));
  if (code == Code::kInt8) wanted = Rotated(wanted);
  double largest = 0;
  for (const double v : wanted) largest = std::max(largest, std::abs(v));
  EXPECT_NEAR(scale, largest / (code == Code::kFp8 ? 448 : 127), largest * 1e-5);
  for (int i = 0; i < padded; ++i) {
    const double e = wanted[static_cast<size_t>(i)];
    if (code == Code::kFp8)
      ASSERT_NEAR(e, FromE4M3(codes[i]) * scale, std::abs(e) / 15.9 + scale / 1023 + largest * 1e-5) << i;
    else
      ASSERT_NEAR(e, static_cast<int8_t>(codes[i]) * double{scale}, scale / 2 + largest * 1e-5) << i;
  }
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(FloatToBf16(v));
  return out;
}

// Sums of products as each kind of codes has them, and their values.
struct Sums {
  Sums(Code code, int64_t count, float largest) {
    values = RandomFloats(count, 5, largest);
    if (code == Code::kFp8) {
      narrow.emplace(ToBf16(values));
      for (float& v : values) v = Bf16ToFloat(FloatToBf16(v));
    } else {
      std::vector<int32_t> rounded;
      for (float& v : values) rounded.push_back(static_cast<int32_t>(v = std::round(v * 1000)));
      whole.emplace(rounded);
    }
  }
  const void* get() const { return narrow ? static_cast<const void*>(narrow->get()) : whole->get(); }

  std::vector<float> values;
  std::optional<OnDevice<uint16_t>> narrow;
  std::optional<OnDevice<int32_t>> whole;
};

constexpr float kEps = 1e-5f;
constexpr Code kCodes[] = {Code::kFp8, Code::kInt8};

struct NormCase {
  Code code;
  int cols;
  bool with_norm, with_sums;
};
void ExpectActivations(const NormCase& c) {
  constexpr int kTokens = 5;
  const int cols = c.cols, padded = (cols + 127) / 128 * 128;
  auto x = RandomFloats(int64_t{kTokens} * cols, 1, 3.0f);
  const auto norm = RandomFloats(cols, 2), row_scales = RandomFloats(cols, 3),
             token_scales = RandomFloats(kTokens, 4, 0.01f);
  const Sums sums(c.code, int64_t{kTokens} * cols, 100.0f);
  const OnDevice<float> dx(x), dnorm(norm), drows(row_scales), dtokens(token_scales), scales(kTokens);
  const OnDevice<uint8_t> codes(int64_t{kTokens} * padded);
  ToCodesArgs args{.code = c.code,
                   .x = dx.get(),
                   .tokens = kTokens,
                   .cols = cols,
                   .padded = padded,
                   .norm = c.with_norm ? dnorm.get() : nullptr,
                   .eps = kEps,
                   .out = {codes.get(), scales.get()}};
  if (c.with_sums) args.sums = {sums.get(), drows.get(), dtokens.get()};
  ASSERT_EQ(cudaSuccess, LaunchToCodes(args, nullptr));
  const auto got = codes.Read();
  const auto got_scales = scales.Read(), got_x = dx.Read();
  for (int t = 0; t < kTokens; ++t) {
    std::vector<double> wanted;
    double squares = 0;
    for (int i = 0; i < cols; ++i) {
      const auto at = static_cast<size_t>(int64_t{t} * cols + i);
      double v = x[at];
      if (c.with_sums)
        v += double{sums.values[at]} * row_scales[static_cast<size_t>(i)] *
             token_scales[static_cast<size_t>(t)];
      ASSERT_NEAR(v, got_x[at], std::abs(v) * 1e-5 + 1e-4);
      squares += v * v;
      wanted.push_back(v);
    }
    if (c.with_norm)
      for (int i = 0; i < cols; ++i)
        wanted[static_cast<size_t>(i)] *= norm[static_cast<size_t>(i)] / std::sqrt(squares / cols + kEps);
    ExpectRow(c.code, wanted, got.data() + int64_t{t} * padded, padded, got_scales[static_cast<size_t>(t)]);
  }
}

TEST(CudaCodes, ActivationsUnderANormWithSums) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Code code : kCodes)
    for (const int cols : {8, 576, 4096, 5000, 11008, 28672})
      for (const bool with_norm : {false, true})
        for (const bool with_sums : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "code " << static_cast<int>(code) << ", " << cols << ", norm "
                                            << with_norm << ", sums " << with_sums);
          ExpectActivations({code, cols, with_norm, with_sums});
        }
}

void ExpectGateAndUp(Code code, int cols) {
  constexpr int kTokens = 3;
  const int padded = (cols + 127) / 128 * 128;
  const Sums sums(code, int64_t{kTokens} * 2 * cols, 50.0f);
  const auto row_scales = RandomFloats(2 * cols, 3), token_scales = RandomFloats(kTokens, 4, 0.1f);
  const OnDevice<float> drows(row_scales), dtokens(token_scales), scales(kTokens);
  const OnDevice<uint8_t> codes(int64_t{kTokens} * padded);
  ASSERT_EQ(cudaSuccess,
            LaunchActivateCodes(code, {sums.get(), drows.get(), dtokens.get()}, kTokens, cols, padded,
                                DeviceActivation::kSilu, {codes.get(), scales.get()}, nullptr));
  const auto got = codes.Read();
  const auto got_scales = scales.Read();
  for (int t = 0; t < kTokens; ++t) {
    std::vector<double> wanted;
    const auto value = [&](int i) {
      return double{sums.values[static_cast<size_t>(int64_t{t} * 2 * cols + i)]} *
             row_scales[static_cast<size_t>(i)] * token_scales[static_cast<size_t>(t)];
    };
    for (int i = 0; i < cols; ++i) wanted.push_back(value(i) / (1 + std::exp(-value(i))) * value(cols + i));
    ExpectRow(code, wanted, got.data() + int64_t{t} * padded, padded, got_scales[static_cast<size_t>(t)]);
  }
}

TEST(CudaCodes, GateAndUp) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Code code : kCodes)
    for (const int cols : {16, 1536, 5000, 14336, 28672}) {
      SCOPED_TRACE(::testing::Message() << "code " << static_cast<int>(code) << ", " << cols);
      ExpectGateAndUp(code, cols);
    }
}

TEST(CudaCodes, RowsOfWeights) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Code code : kCodes)
    for (const int padded : {128, 640, 4096, 14336}) {
      SCOPED_TRACE(::testing::Message() << "code " << static_cast<int>(code) << ", " << padded);
      constexpr int kRows = 7;
      auto values = RandomFloats(int64_t{kRows} * padded, 5, 0.1f);
      for (int i = 0; i < padded; ++i) values[static_cast<size_t>(2 * padded + i)] = 0;  // a row of zeros
      const auto rows = ToBf16(values);
      const OnDevice<uint16_t> drows(rows);
      const OnDevice<float> scales(kRows);
      const OnDevice<uint8_t> codes(int64_t{kRows} * padded);
      ASSERT_EQ(cudaSuccess,
                LaunchQuantizeRows(code, drows.get(), kRows, padded, {codes.get(), scales.get()}, nullptr));
      const auto got = codes.Read();
      const auto got_scales = scales.Read();
      for (int r = 0; r < kRows; ++r) {
        std::vector<double> wanted;
        for (int i = 0; i < padded; ++i)
          wanted.push_back(Bf16ToFloat(rows[static_cast<size_t>(r * padded + i)]));
        ExpectRow(code, wanted, got.data() + int64_t{r} * padded, padded, got_scales[static_cast<size_t>(r)]);
      }
    }
}

}  // namespace
}  // namespace celer::cuda
