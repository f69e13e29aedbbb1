#include "kernels/llm/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(RmsNorm, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 64}, {5, 33}, {1, 4097}, {70, 576}}) {
    const auto x = testing::RandomFloats(rows * cols, 1, 3.0f), weight = testing::RandomFloats(cols, 2);
    std::vector<float> out(x.size()), alone(x.size());
    RmsNorm({.x = x.data(),
             .weight = weight.data(),
             .eps = 1e-5f,
             .rows = rows,
             .cols = cols,
             .out = out.data(),
             .pool = &pool});
    std::vector<double> expected;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < cols; ++c) squares += std::pow(double{x[r * cols + c]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
      for (int64_t c = 0; c < cols; ++c) expected.push_back(x[r * cols + c] * scale * weight[c]);
      RmsNorm({.x = x.data() + r * cols,
               .weight = weight.data(),
               .eps = 1e-5f,
               .rows = 1,
               .cols = cols,
               .out = alone.data() + r * cols});
    }
    // The sum's relative error halves under the root; SumTolerance bounds it far above what happens.
    EXPECT_TRUE(testing::AllNear(out, expected,
                                 [&](size_t i) { return testing::SumTolerance(8, std::abs(expected[i])); }))
        << rows << "x" << cols;
    EXPECT_EQ(alone, out) << "a row must not depend on the rest of the batch";
  }
}

TEST(AddNormed, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 64}, {5, 33}, {1, 4097}, {70, 576}}) {
    const auto x = testing::RandomFloats(rows * cols, 1, 3.0f), weight = testing::RandomFloats(cols, 2),
               residual = testing::RandomFloats(rows * cols, 3, 10.0f);
    std::vector<float> out = residual;
    AddNormed({.x = x.data(),
               .weight = weight.data(),
               .eps = 1e-3f,
               .scale = 0.3f,
               .rows = rows,
               .cols = cols,
               .to = out.data(),
               .pool = &pool});
    std::vector<double> expected;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < cols; ++c) squares += std::pow(double{x[r * cols + c]}, 2);
      const double scale = double{0.3f} / std::sqrt(squares / static_cast<double>(cols) + double{1e-3f});
      for (int64_t c = 0; c < cols; ++c)
        expected.push_back(residual[r * cols + c] + x[r * cols + c] * scale * weight[c]);
    }
    EXPECT_TRUE(testing::AllNear(out, expected,
                                 [&](size_t i) {
                                   const double sum = std::abs(double{residual[i]});
                                   return testing::SumTolerance(8, sum + std::abs(expected[i]));
                                 }))
        << rows << "x" << cols;
  }
}

TEST(RmsNorm, InPlace) {
  auto x = testing::RandomFloats(100, 1);
  const auto weight = testing::RandomFloats(100, 2);
  std::vector<float> out(100);
  RmsNorm({.x = x.data(), .weight = weight.data(), .rows = 1, .cols = 100, .out = out.data()});
  RmsNorm({.x = x.data(), .weight = weight.data(), .rows = 1, .cols = 100, .out = x.data()});
  EXPECT_EQ(x, out);
}

}  // namespace
}  // namespace celer
