#include "kernels/network/rows/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

constexpr int64_t kLengths[] = {1, 2, 5, 16, 33, 64, 197, 768, 1003};

template <class Fn>
void ForEveryVariant(Fn fn) {
  for (const auto& variant : RowVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    SCOPED_TRACE(variant.name);
    for (const int64_t n : kLengths) fn(*variant.run, n);
  }
}

TEST(Rows, SoftmaxMatchesDouble) {
  ForEveryVariant([](const RowKernels& kernels, int64_t n) {
    auto x = RandomFloats(n, 1, 20.0f);
    x[static_cast<size_t>(n) / 2] = -INFINITY;  // as a mask has it
    if (n == 1) x[0] = 3;
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    std::vector<double> expected;
    for (const float v : x) sum += std::exp(v - most);
    for (const float v : x) expected.push_back(std::exp(v - most) / sum);
    std::vector<float> out(x.size());
    kernels.softmax(x.data(), out.data(), n);
    // x - max is rounded before it is an exponent.
    EXPECT_TRUE(testing::AllNear(out, expected, [&](size_t i) {
      const double below = std::isfinite(x[i]) ? most - x[i] : 0;
      return 1e-30 + (1e-6 + 6e-8 * below) * expected[i];
    })) << n;
    kernels.softmax(x.data(), x.data(), n);
    EXPECT_EQ(x, out) << "in place, " << n;
  });
}

TEST(Rows, LayerNormMatchesDouble) {
  ForEveryVariant([](const RowKernels& kernels, int64_t n) {
    auto x = RandomFloats(n, 2);
    for (float& v : x) v += 3;  // a mean that is not small: a difference of large sums would show
    const auto scale = RandomFloats(n, 3), shift = RandomFloats(n, 4);
    double mean = 0, squares = 0;
    for (const float v : x) mean += v / static_cast<double>(n);
    for (const float v : x) squares += (v - mean) * (v - mean);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    std::vector<double> expected, plain;
    for (size_t i = 0; i < x.size(); ++i) {
      plain.push_back((x[i] - mean) * factor);
      expected.push_back(plain.back() * scale[i] + shift[i]);
    }
    std::vector<float> out(x.size());
    // The mean is off by a few ulp of 3.
    const double tolerance = 4e-6 * (1 + factor);
    kernels.layer_norm(x.data(), nullptr, nullptr, 1e-5f, out.data(), n);
    EXPECT_TRUE(testing::AllNear(out, plain, {.absolute = tolerance})) << n;
    kernels.layer_norm(x.data(), scale.data(), shift.data(), 1e-5f, out.data(), n);
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = tolerance})) << n;
  });
}

TEST(Rows, SumMatchesDouble) {
  ForEveryVariant([](const RowKernels& kernels, int64_t n) {
    const auto x = RandomFloats(n, 5);
    double sum = 0, size = 0;
    for (const float v : x) sum += v, size += std::abs(v);
    EXPECT_NEAR(kernels.sum(x.data(), n), sum, testing::SumTolerance(n, size)) << n;
  });
}

TEST(Rows, ManyRowsInParallel) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  const int64_t rows = 201, cols = 99;
  const auto x = RandomFloats(rows * cols, 6), scale = RandomFloats(cols, 7);
  const auto run = [&](ThreadPool& pool) {
    std::vector<float> out(x.size() * 2 + static_cast<size_t>(rows));
    Softmax(x.data(), out.data(), rows, cols, pool);
    LayerNorm({.x = x.data(),
               .scale = scale.data(),
               .out = out.data() + x.size(),
               .rows = rows,
               .cols = cols,
               .pool = &pool});
    MeanOfRows(x.data(), out.data() + 2 * x.size(), rows, cols, pool);
    return out;
  };
  const auto expected = run(one);
  EXPECT_EQ(run(three), expected);
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += expected[7 * cols + c];
  EXPECT_NEAR(sum, 1, 1e-5);
  double mean = 0;
  for (int64_t c = 0; c < cols; ++c) mean += x[7 * cols + c] / static_cast<double>(cols);
  EXPECT_NEAR(expected[2 * x.size() + 7], mean, 1e-6);
}

TEST(Rows, ColumnsMatchDouble) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  for (const auto& [batch, n, cols] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 16, 1003}, {3, 7, 5}, {2, 1, 300}, {1, 300, 1}}) {
    const auto x = RandomFloats(batch * n * cols, 8, 5.0f);
    std::vector<float> softmax(x.size()), again(x.size()), sums(batch * cols), threes(sums);
    SoftmaxColumns(x.data(), softmax.data(), batch, n, cols, one);
    SoftmaxColumns(x.data(), again.data(), batch, n, cols, three);
    EXPECT_EQ(softmax, again);
    SumColumns(x.data(), 0.5f, sums.data(), batch, n, cols, one);
    SumColumns(x.data(), 0.5f, threes.data(), batch, n, cols, three);
    EXPECT_EQ(sums, threes);
    for (int64_t p = 0; p < batch; ++p)
      for (int64_t c = 0; c < cols; ++c) {
        const auto at = [&](int64_t i) { return static_cast<size_t>((p * n + i) * cols + c); };
        double most = -INFINITY, sum = 0, size = 0, powers = 0;
        for (int64_t i = 0; i < n; ++i) {
          most = std::max<double>(most, x[at(i)]);
          sum += x[at(i)];
          size += std::abs(x[at(i)]);
        }
        for (int64_t i = 0; i < n; ++i) powers += std::exp(x[at(i)] - most);
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(softmax[at(i)], std::exp(x[at(i)] - most) / powers, 4e-6) << n << " x " << cols;
        ASSERT_NEAR(sums[p * cols + c], 0.5 * sum, testing::SumTolerance(n, size) + 1e-6);
      }
  }
}

}  // namespace
}  // namespace celer
