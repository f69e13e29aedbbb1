#include "kernels/llm/rms_norm/norm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

struct Form {
  bool layer, bias, add, gather;
};

void Check(int tokens, int cols, const Form& form) {
  auto x = RandomFloats(int64_t{tokens} * cols, 1, 2.0f);
  for (float& v : x) v += 3;  // a mean that is not small: a difference of large sums would show
  const auto weight = RandomFloats(cols, 2), bias = RandomFloats(cols, 3),
             before = RandomFloats(int64_t{tokens} * cols, 4);
  std::vector<int32_t> rows;
  for (int t = 0; t < tokens; ++t) rows.push_back(form.gather ? tokens - 1 - t : t);
  const OnDevice<float> dx(x), dweight(weight), dbias(bias), out(before);
  const OnDevice<int32_t> drows(rows);
  ASSERT_EQ(cudaSuccess, LaunchNorm({.x = dx.get(),
                                     .rows = form.gather ? drows.get() : nullptr,
                                     .tokens = tokens,
                                     .cols = cols,
                                     .layer = form.layer,
                                     .weight = dweight.get(),
                                     .bias = form.bias ? dbias.get() : nullptr,
                                     .eps = 1e-5f,
                                     .add = form.add,
                                     .out = out.get()},
                                    nullptr));
  const auto got = out.Read();
  for (int t = 0; t < tokens; ++t) {
    const float* row = x.data() + int64_t{rows[static_cast<size_t>(t)]} * cols;
    double mean = 0, squares = 0;
    for (int i = 0; i < cols; ++i) mean += form.layer ? double{row[i]} / cols : 0;
    for (int i = 0; i < cols; ++i) squares += (row[i] - mean) * (row[i] - mean) / cols;
    for (int i = 0; i < cols; ++i) {
      const auto at = static_cast<size_t>(t) * static_cast<size_t>(cols) + static_cast<size_t>(i),
                 col = static_cast<size_t>(i);
      const double expected = (form.add ? before[at] : 0) +
                              (row[i] - mean) / std::sqrt(squares + 1e-5) * weight[col] +
                              (form.bias ? bias[col] : 0);
      ASSERT_NEAR(expected, got[at], 2e-5 * (1 + std::abs(expected)))
          << tokens << " x " << cols << " token " << t << " column " << i;
    }
  }
}

TEST(CudaNorm, MatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {1, 33, 512, 3840, 8193, 12288})
    for (const Form& form : {Form{false, false, false, false}, Form{false, false, true, false},
                             Form{true, true, false, true}, Form{true, false, false, false}})
      for (const int tokens : {1, 7}) Check(tokens, cols, form);
}

TEST(CudaNorm, InfinityBecomesNan) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const bool layer : {false, true})
    for (const float bad : {INFINITY, NAN, 1e30f}) {
      std::vector<float> x(100, 1.0f);
      x[17] = bad;
      const OnDevice<float> dx(x), weight(std::vector<float>(100, 1.0f)), out(100);
      ASSERT_EQ(cudaSuccess, LaunchNorm({.x = dx.get(),
                                         .tokens = 1,
                                         .cols = 100,
                                         .layer = layer,
                                         .weight = weight.get(),
                                         .out = out.get()},
                                        nullptr));
      for (const float value : out.Read()) EXPECT_TRUE(std::isnan(value)) << bad;
    }
}

// One value of the activations, both parts of it.
double ActivationAt(const std::vector<uint16_t>& bits, const WgmmaActivations& form, int token, int column) {
  double sum = 0;
  for (int part = 0; part < form.parts; ++part) {
    const int at = token * form.parts + part;
    const int64_t index =
        ((int64_t{at / form.tile} * (form.padded / 8) + column / 32 * 4 + column % 8 / 2) * form.tile +
         at % form.tile) *
            8 +
        column % 32 / 8 * 2 + column % 2;
    sum += Bf16ToFloat(bits[static_cast<size_t>(index)]);
  }
  return sum;
}

TEST(CudaNorm, AddedAndNormedForTheNextProduct) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int cols : {2, 130, 3840, 8192})
    for (const int tokens : {1, 7, 40})
      for (const bool weighed : {false, true}) {
        SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(cols));
        const auto branch = RandomFloats(int64_t{tokens} * cols, 1, 2.0f), weight = RandomFloats(cols, 2),
                   before = RandomFloats(int64_t{tokens} * cols, 3), next = RandomFloats(cols, 4);
        WgmmaActivations form{
            .tile = tokens <= 8 ? 16 : 32, .padded = (cols + 127) / 128 * 128, .parts = tokens <= 8 ? 2 : 1};
        const OnDevice<float> dbranch(branch), dweight(weight), dx(before), dnext(next);
        const OnDevice<uint16_t> made(WgmmaActivations::Bytes(tokens * form.parts, form.tile, form.padded) /
                                      2);
        form.data = made.get();
        ASSERT_EQ(cudaSuccess, LaunchAddNormed({.branch = dbranch.get(),
                                                .weight = dweight.get(),
                                                .eps = 1e-5f,
                                                .x = dx.get(),
                                                .tokens = tokens,
                                                .cols = cols,
                                                .next = form,
                                                .next_weight = weighed ? dnext.get() : nullptr,
                                                .next_eps = 1e-6f},
                                               nullptr));
        const auto x = dx.Read();
        const auto bits = made.Read();
        for (int t = 0; t < tokens; ++t) {
          const auto at = static_cast<size_t>(t) * static_cast<size_t>(cols);
          double squares = 0, after = 0;
          for (size_t i = 0; i < static_cast<size_t>(cols); ++i)
            squares += double{branch[at + i]} * branch[at + i] / cols;
          std::vector<double> sums;
          for (size_t i = 0; i < static_cast<size_t>(cols); ++i) {
            sums.push_back(before[at + i] + branch[at + i] / std::sqrt(squares + 1e-5) * weight[i]);
            after += sums[i] * sums[i] / cols;
          }
          for (int i = 0; i < form.padded; ++i) {
            if (i >= cols) {
              ASSERT_EQ(ActivationAt(bits, form, t, i), 0) << "token " << t << " column " << i;
              continue;
            }
            const auto col = static_cast<size_t>(i);
            ASSERT_NEAR(sums[col], x[at + col], 2e-5 * (1 + std::abs(sums[col])));
            const double expected = weighed ? sums[col] / std::sqrt(after + 1e-6) * next[col] : sums[col];
            ASSERT_NEAR(expected, ActivationAt(bits, form, t, i),
                        std::abs(expected) / (form.parts == 2 ? 30000 : 256) + 3e-5)
                << "token " << t << " column " << i;
          }
        }
      }
}

TEST(CudaNorm, BiasIsAdded) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const auto x = RandomFloats(3 * 301, 1), bias = RandomFloats(301, 2);
  const OnDevice<float> dx(x), dbias(bias);
  ASSERT_EQ(cudaSuccess, LaunchAddBias(dx.get(), dbias.get(), 3, 301, nullptr));
  const auto got = dx.Read();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], x[i] + bias[i % 301]) << i;
}

}  // namespace
}  // namespace celer::cuda
