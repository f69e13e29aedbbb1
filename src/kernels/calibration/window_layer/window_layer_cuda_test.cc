#include "kernels/calibration/window_layer/window_layer_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/device.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::AllNear;
using celer::testing::RandomFloats;
using testing::OnDevice;

constexpr float kEps = 1e-5f;

TEST(CudaWindows, NormMatchesTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const auto& [rows, cols] : {std::pair{1, 1}, {7, 33}, {300, 576}, {3, 4097}}) {
    const auto x = RandomFloats(int64_t{rows} * cols, 1, 3.0f), weight = RandomFloats(cols, 2);
    std::vector<float> expected(x.size());
    RmsNorm({.x = x.data(),
             .weight = weight.data(),
             .eps = kEps,
             .rows = rows,
             .cols = cols,
             .out = expected.data()});
    const OnDevice<float> dx(x), dweight(weight), out(int64_t{rows} * cols);
    ASSERT_EQ(cudaSuccess, LaunchWindowsNorm(dx.get(), dweight.get(), kEps, rows, cols, out.get(), nullptr));
    EXPECT_TRUE(AllNear(out.Read(), expected, {.absolute = 1e-7, .relative = 4e-6})) << rows << " x " << cols;
  }
}

TEST(CudaWindows, BiasIsAddedToEveryRow) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const auto x = RandomFloats(77 * 45, 1), bias = RandomFloats(45, 2);
  std::vector<float> expected = x;
  for (size_t i = 0; i < x.size(); ++i) expected[i] += bias[i % 45];
  const OnDevice<float> dx(x), dbias(bias);
  ASSERT_EQ(cudaSuccess, LaunchWindowsBias(dx.get(), dbias.get(), 77, 45, nullptr));
  EXPECT_EQ(dx.Read(), expected);
}

TEST(CudaWindows, HeadsAreRotatedAsOnTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  struct Case {
    int tokens, window, count, dim, rope_dim;
    RopeLayout layout;
    bool norm;
  };
  for (const Case& c : {Case{10, 5, 3, 64, 64, RopeLayout::kHalf, false},
                        {21, 7, 2, 80, 20, RopeLayout::kHalf, true},
                        {6, 6, 5, 6, 6, RopeLayout::kInterleaved, true},
                        {64, 16, 9, 128, 128, RopeLayout::kInterleaved, false}}) {
    auto heads = RandomFloats(int64_t{c.tokens} * c.count * c.dim, 1, 2.0f);
    const auto norm = RandomFloats(c.dim, 2),
               angles = RandomFloats(int64_t{c.window} * c.rope_dim / 2, 3, 3.0f);
    std::vector<float> cos, sin;
    for (const float angle : angles) cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
    const OnDevice<float> dheads(heads), dnorm(norm), dcos(cos), dsin(sin);
    for (int t = 0; t < c.tokens; ++t) {
      float* at = heads.data() + int64_t{t} * c.count * c.dim;
      if (c.norm)
        RmsNorm({.x = at, .weight = norm.data(), .eps = kEps, .rows = c.count, .cols = c.dim, .out = at});
      const int64_t table = int64_t{t % c.window} * (c.rope_dim / 2);
      RotateHeads(at, c.count, c.dim, cos.data() + table, sin.data() + table, c.rope_dim, c.layout);
    }
    ASSERT_EQ(cudaSuccess, LaunchWindowsRotate({.heads = dheads.get(),
                                                .tokens = c.tokens,
                                                .window = c.window,
                                                .count = c.count,
                                                .dim = c.dim,
                                                .norm = c.norm ? dnorm.get() : nullptr,
                                                .eps = kEps,
                                                .cos = dcos.get(),
                                                .sin = dsin.get(),
                                                .rope_dim = c.rope_dim,
                                                .layout = c.layout},
                                               nullptr));
    EXPECT_TRUE(AllNear(dheads.Read(), heads, {.absolute = 4e-6, .relative = 4e-6})) << c.dim;
  }
}

TEST(CudaWindows, SoftmaxSeesThePast) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  struct Case {
    int64_t batch, queries, keys, first, sliding;
  };
  for (const Case& c : {Case{3, 7, 7, 0, 0}, {2, 300, 700, 400, 0}, {1, 5, 40, 35, 6}, {4, 33, 33, 0, 1}}) {
    const auto scores = RandomFloats(c.batch * c.queries * c.keys, 1, 20.0f);
    const float scale = 0.125f;
    std::vector<double> expected(scores.size());
    for (int64_t row = 0; row < c.batch * c.queries; ++row) {
      const int64_t position = c.first + row % c.queries,
                    begin = c.sliding > 0 ? std::max<int64_t>(0, position - c.sliding + 1) : 0;
      double total = 0;
      for (int64_t k = begin; k <= position; ++k) {
        const auto at = static_cast<size_t>(row * c.keys + k);
        total += expected[at] = std::exp(double{scores[at]} * scale);
      }
      for (int64_t k = begin; k <= position; ++k) expected[static_cast<size_t>(row * c.keys + k)] /= total;
    }
    const OnDevice<float> dscores(scores);
    ASSERT_EQ(cudaSuccess, LaunchWindowsSoftmax({.scores = dscores.get(),
                                                 .batch = c.batch,
                                                 .queries = c.queries,
                                                 .keys = c.keys,
                                                 .first = c.first,
                                                 .sliding = c.sliding,
                                                 .scale = scale},
                                                nullptr));
    EXPECT_TRUE(AllNear(dscores.Read(), expected, {.absolute = 1e-9, .relative = 1e-5})) << c.keys;
  }
}

TEST(CudaWindows, ActivationsMatchTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Activation kind :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    const auto gate = RandomFloats(1003, 1, 8.0f), up = RandomFloats(1003, 2);
    std::vector<float> expected(gate.size());
    reference::ActivateMul(kind, gate.data(), up.data(), expected.data(), 1003);
    const OnDevice<float> dgate(gate), dup(up);
    ASSERT_EQ(cudaSuccess, LaunchWindowsActivate(kind, dgate.get(), dup.get(), 1003, nullptr));
    EXPECT_TRUE(AllNear(dgate.Read(), expected, {.absolute = 3e-6, .relative = 3e-6}))
        << static_cast<int>(kind);
  }
}

TEST(CudaWindows, ColumnsAndBrokenValues) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto x = RandomFloats(501 * 67, 1);
  std::vector<double> expected(67, 2.0);
  for (size_t i = 0; i < x.size(); ++i) expected[i % 67] += std::abs(x[i]);
  const OnDevice<float> dx(x);
  const OnDevice<double> sums(std::vector<double>(67, 2.0));
  ASSERT_EQ(cudaSuccess, LaunchColumnMagnitudes(dx.get(), 501, 67, sums.get(), nullptr));
  EXPECT_TRUE(AllNear(sums.Read(), expected, {.relative = 1e-12}));

  const OnDevice<unsigned long long> first(std::vector<unsigned long long>{~0ULL});
  ASSERT_EQ(cudaSuccess, LaunchFirstNotFinite(dx.get(), 501 * 67, first.get(), nullptr));
  EXPECT_EQ(first.Read()[0], ~0ULL);
  x[30000] = std::numeric_limits<float>::quiet_NaN();
  x[12345] = -std::numeric_limits<float>::infinity();
  const OnDevice<float> broken(x);
  ASSERT_EQ(cudaSuccess, LaunchFirstNotFinite(broken.get(), 501 * 67, first.get(), nullptr));
  EXPECT_EQ(first.Read()[0], 12345u);
}

}  // namespace
}  // namespace celer::cuda
