// What lies between the products of many tokens.
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

constexpr float kEps = 1e-5f;

// A token's activations under an RMS norm, or as they are without one.
std::vector<double> Normed(const float* row, int cols, const std::vector<float>& norm) {
  double squares = 0;
  for (int i = 0; i < cols; ++i) squares += double{row[i]} * row[i];
  std::vector<double> out;
  for (int i = 0; i < cols; ++i)
    out.push_back(norm.empty() ? row[i]
                               : row[i] * norm[static_cast<size_t>(i)] / std::sqrt(squares / cols + kEps));
  return out;
}

void ExpectNear(double expected, uint16_t bits) {
  ASSERT_NEAR(expected, Bf16ToFloat(bits), std::abs(expected) / 200 + 1e-6);
}

TEST(CudaGemm, ActivationsUnderANorm) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {4096, 1, 100, 127, 576, 2050, 5000, 11008})
    for (const int tokens : {1, 65, 130, 300})
      for (const bool with_norm : {false, true}) {
        SCOPED_TRACE(std::to_string(cols) + " columns, tokens " + std::to_string(tokens));
        const int padded = (cols + 127) / 128 * 128;
        const auto x = RandomFloats(int64_t{tokens} * cols, 1, 3.0f);
        const auto norm = with_norm ? RandomFloats(cols, 2) : std::vector<float>();
        const OnDevice<float> dx(x), dnorm(norm);
        const OnDevice<uint16_t> rows(int64_t{tokens} * padded);
        const float* by = with_norm ? dnorm.get() : nullptr;
        ASSERT_EQ(cudaSuccess, LaunchToBf16(dx.get(), tokens, cols, padded, by, kEps, rows.get(), nullptr));
        const int tile = WgmmaTile(4096, tokens);
        const OnDevice<uint16_t> wide(WgmmaActivationBytes(tokens, padded) / 2);
        ASSERT_EQ(cudaSuccess, LaunchWgmmaActivations(dx.get(), nullptr, tokens, cols, by, kEps,
                                                      {wide.get(), tile, padded, 1}, nullptr));
        const auto got = rows.Read(), got_wide = wide.Read();
        for (int t = 0; t < tokens; t += 1 + tokens / 40) {
          const auto expected = Normed(x.data() + int64_t{t} * cols, cols, norm);
          for (int i = 0; i < padded; ++i) {
            const double e = i < cols ? expected[static_cast<size_t>(i)] : 0;
            ExpectNear(e, got[static_cast<size_t>(int64_t{t} * padded + i)]);
            const int64_t at =
                ((int64_t{t / tile} * (padded / 8) + i / 32 * 4 + i % 8 / 2) * tile + t % tile) * 8 +
                i % 32 / 8 * 2 + i % 2;
            ExpectNear(e, got_wide[static_cast<size_t>(at)]);
            if (HasFatalFailure()) return;
          }
        }
      }
}

TEST(CudaGemm, ActivatesGateTimesUp) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {11008, 200, 77})
    for (const int tokens : {1, 33}) {
      SCOPED_TRACE(std::to_string(cols) + " columns, tokens " + std::to_string(tokens));
      const int padded = (cols + 127) / 128 * 128;
      std::vector<uint16_t> gate_up;
      for (const float v : RandomFloats(int64_t{tokens} * 2 * cols, 1, 3.0f))
        gate_up.push_back(FloatToBf16(v));
      const OnDevice<uint16_t> from(gate_up), to(int64_t{tokens} * padded);
      ASSERT_EQ(cudaSuccess, LaunchActivateBf16(from.get(), tokens, cols, padded, DeviceActivation::kSilu,
                                                to.get(), nullptr));
      const auto got = to.Read();
      for (int t = 0; t < tokens; ++t)
        for (int i = 0; i < padded; ++i) {
          const size_t at = static_cast<size_t>(int64_t{t} * 2 * cols + i);
          const double gate = i < cols ? Bf16ToFloat(gate_up[at]) : 0,
                       up = i < cols ? Bf16ToFloat(gate_up[at + static_cast<size_t>(cols)]) : 0;
          ExpectNear(gate / (1 + std::exp(-gate)) * up, got[static_cast<size_t>(int64_t{t} * padded + i)]);
          if (HasFatalFailure()) return;
        }
    }
}

// Sums of integers are exact.
TEST(CudaGemm, MultipliesIntegers) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto gemm = Gemm::Create(0);
  if (!gemm) GTEST_SKIP() << gemm.error().message();
  for (const int tokens : {9, 17, 300})
    for (const int padded : {128, 4096}) {
      constexpr int kRows = 48;
      SCOPED_TRACE(std::to_string(padded) + " columns, tokens " + std::to_string(tokens));
      const auto codes = [](int64_t count, uint32_t seed) {
        std::vector<int8_t> out;
        for (const float v : RandomFloats(count, seed, 127.0f)) out.push_back(static_cast<int8_t>(v));
        return out;
      };
      const auto w = codes(int64_t{kRows} * padded, 1), x = codes(int64_t{tokens} * padded, 2);
      const OnDevice<int8_t> dw(w), dx(x);
      const OnDevice<int32_t> out(int64_t{tokens} * kRows);
      const Status run = gemm->Run(
          {.type = Gemm::Type::kInt8, .rows = kRows, .tokens = tokens, .padded = padded, .out_stride = kRows},
          dw.get(), dx.get(), out.get(), nullptr);
      ASSERT_TRUE(run) << run.error().message();
      const auto got = out.Read();
      for (int t = 0; t < tokens; ++t)
        for (int r = 0; r < kRows; ++r) {
          int32_t sum = 0;
          for (int i = 0; i < padded; ++i)
            sum += w[static_cast<size_t>(r * padded + i)] * x[static_cast<size_t>(t * padded + i)];
          ASSERT_EQ(sum, got[static_cast<size_t>(t * kRows + r)]) << "token " << t << " row " << r;
        }
    }
}

}  // namespace
}  // namespace celer::cuda
