// What lies between products in fp8.
#include "kernels/matmul/cuda/gemm/fp8_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/device.h"
#include "formats/bfloat16.h"
#include "kernels/cuda/on_device.h"
#include "kernels/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

double FromE4M3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

// Codes times their scale are the values, to half a unit in the last of four bits, or of the smallest codes.
void ExpectRow(const std::vector<double>& wanted, const uint8_t* codes, int padded, float scale) {
  double largest = 0;
  for (const double v : wanted) largest = std::max(largest, std::abs(v));
  EXPECT_NEAR(scale, largest / 448, largest * 1e-5);
  for (int i = 0; i < padded; ++i) {
    const double e = i < static_cast<int>(wanted.size()) ? wanted[static_cast<size_t>(i)] : 0;
    ASSERT_NEAR(e, FromE4M3(codes[i]) * scale, std::abs(e) / 15.9 + scale / 1023 + largest * 1e-5) << i;
  }
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(FloatToBf16(v));
  return out;
}

constexpr float kEps = 1e-5f;

TEST(CudaFp8, ActivationsUnderANormWithSums) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {8, 576, 4096, 5000, 11008, 28672})
    for (const bool with_norm : {false, true})
      for (const bool with_sums : {false, true}) {
        SCOPED_TRACE(::testing::Message() << cols << ", norm " << with_norm << ", sums " << with_sums);
        constexpr int kTokens = 5;
        const int padded = (cols + 127) / 128 * 128;
        auto x = RandomFloats(int64_t{kTokens} * cols, 1, 3.0f);
        const auto norm = RandomFloats(cols, 2), row_scales = RandomFloats(cols, 3),
                   token_scales = RandomFloats(kTokens, 4);
        const auto sums = ToBf16(RandomFloats(int64_t{kTokens} * cols, 5, 100.0f));
        const OnDevice<float> dx(x), dnorm(norm), drows(row_scales), dtokens(token_scales), scales(kTokens);
        const OnDevice<uint16_t> dsums(sums);
        const OnDevice<uint8_t> codes(int64_t{kTokens} * padded);
        ToFp8Args args{.x = dx.get(),
                       .tokens = kTokens,
                       .cols = cols,
                       .padded = padded,
                       .norm = with_norm ? dnorm.get() : nullptr,
                       .eps = kEps,
                       .out = {codes.get(), scales.get()}};
        if (with_sums) args.sums = {dsums.get(), drows.get(), dtokens.get()};
        ASSERT_EQ(cudaSuccess, LaunchToFp8(args, nullptr));
        const auto got = codes.Read();
        const auto got_scales = scales.Read(), got_x = dx.Read();
        for (int t = 0; t < kTokens; ++t) {
          std::vector<double> wanted;
          double squares = 0;
          for (int i = 0; i < cols; ++i) {
            const auto at = static_cast<size_t>(int64_t{t} * cols + i);
            double v = x[at];
            if (with_sums)
              v += double{Bf16ToFloat(sums[at])} * row_scales[static_cast<size_t>(i)] *
                   token_scales[static_cast<size_t>(t)];
            ASSERT_NEAR(v, got_x[at], std::abs(v) * 1e-5 + 1e-4);
            squares += v * v;
            wanted.push_back(v);
          }
          if (with_norm)
            for (int i = 0; i < cols; ++i)
              wanted[static_cast<size_t>(i)] *=
                  norm[static_cast<size_t>(i)] / std::sqrt(squares / cols + kEps);
          ExpectRow(wanted, got.data() + int64_t{t} * padded, padded, got_scales[static_cast<size_t>(t)]);
        }
      }
}

TEST(CudaFp8, GateAndUp) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {16, 1536, 5000, 14336, 28672}) {
    SCOPED_TRACE(cols);
    constexpr int kTokens = 3;
    const int padded = (cols + 127) / 128 * 128;
    const auto sums = ToBf16(RandomFloats(int64_t{kTokens} * 2 * cols, 5, 50.0f));
    const auto row_scales = RandomFloats(2 * cols, 3), token_scales = RandomFloats(kTokens, 4);
    const OnDevice<uint16_t> dsums(sums);
    const OnDevice<float> drows(row_scales), dtokens(token_scales), scales(kTokens);
    const OnDevice<uint8_t> codes(int64_t{kTokens} * padded);
    ASSERT_EQ(cudaSuccess, LaunchActivateFp8({dsums.get(), drows.get(), dtokens.get()}, kTokens, cols, padded,
                                             DeviceActivation::kSilu, {codes.get(), scales.get()}, nullptr));
    const auto got = codes.Read();
    const auto got_scales = scales.Read();
    for (int t = 0; t < kTokens; ++t) {
      std::vector<double> wanted;
      const auto value = [&](int i) {
        return double{Bf16ToFloat(sums[static_cast<size_t>(int64_t{t} * 2 * cols + i)])} *
               row_scales[static_cast<size_t>(i)] * token_scales[static_cast<size_t>(t)];
      };
      for (int i = 0; i < cols; ++i) wanted.push_back(value(i) / (1 + std::exp(-value(i))) * value(cols + i));
      ExpectRow(wanted, got.data() + int64_t{t} * padded, padded, got_scales[static_cast<size_t>(t)]);
    }
  }
}

TEST(CudaFp8, RowsOfWeights) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int padded : {128, 640, 4096, 14336}) {
    SCOPED_TRACE(padded);
    constexpr int kRows = 7;
    auto values = RandomFloats(int64_t{kRows} * padded, 5, 0.1f);
    for (int i = 0; i < padded; ++i) values[static_cast<size_t>(2 * padded + i)] = 0;  // a row of zeros
    const auto rows = ToBf16(values);
    const OnDevice<uint16_t> drows(rows);
    const OnDevice<float> scales(kRows);
    const OnDevice<uint8_t> codes(int64_t{kRows} * padded);
    ASSERT_EQ(cudaSuccess,
              LaunchQuantizeRows(drows.get(), kRows, padded, {codes.get(), scales.get()}, nullptr));
    const auto got = codes.Read();
    const auto got_scales = scales.Read();
    for (int r = 0; r < kRows; ++r) {
      std::vector<double> wanted;
      for (int i = 0; i < padded; ++i)
        wanted.push_back(Bf16ToFloat(rows[static_cast<size_t>(r * padded + i)]));
      ExpectRow(wanted, got.data() + int64_t{r} * padded, padded, got_scales[static_cast<size_t>(r)]);
    }
  }
}

}  // namespace
}  // namespace celer::cuda
