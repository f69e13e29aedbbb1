#include "quantize/network/observer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace celer::ptq {
namespace {

std::vector<float> Normal(size_t count, uint32_t seed, float outlier = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (size_t i = 0; i < count; ++i) out.push_back(normal(random));
  if (outlier != 0) out[count / 2] = outlier;
  return out;
}

Range Chosen(const Observer& observer, RangeMethod method, ActivationType type = ActivationType::kU8) {
  return observer.Choose({.method = method, .percentile = 99.9, .type = type});
}

double SquaredError(const std::vector<float>& values, const Range& range, ActivationType type) {
  const Grid grid = GridFor(range, type, false);
  double sum = 0;
  for (const float x : values) sum += std::pow(double{x} - grid.Round(double{x}), 2);
  return sum;
}

TEST(Grid, HasAnExactZeroAndSpansTheRange) {
  for (const auto type : {ActivationType::kU8, ActivationType::kI8, ActivationType::kI8Symmetric})
    for (const bool power : {false, true})
      for (const Range range : {Range{-1, 3}, {0, 6}, {-0.1, 0}, {0, 0}, {-1e-7, 1e5}}) {
        const Grid grid = GridFor(range, type, power);
        EXPECT_EQ(grid.Round(0), 0);
        EXPECT_NEAR(grid.Round(range.high), range.high, double{grid.scale} * 0.51);
        EXPECT_NEAR(grid.Round(range.low), range.low, double{grid.scale} * 0.51);
        if (power) {
          EXPECT_EQ(std::exp2(std::round(std::log2(grid.scale))), grid.scale);
        }
      }
  EXPECT_EQ(GridFor({0, 255}, ActivationType::kU8, false), (Grid{1, 0, DType::kU8, 0, 255}));
  EXPECT_EQ(GridFor({-128, 127}, ActivationType::kI8, false), (Grid{1, 0, DType::kI8, -128, 127}));
}

TEST(Grid, WeightsPerChannelAndPerTensor) {
  const std::vector<float> weights = {1, -2, 0.015f, 0.02f};
  const QuantizedWeights rows = QuantizeWeights(weights, {1, 2, 2}, false, {});
  EXPECT_EQ(rows.q, (std::vector<int8_t>{64, -127, 95, 127}));
  const QuantizedWeights all = QuantizeWeights(weights, {1, 1, 4}, false, {});
  EXPECT_EQ(all.q, (std::vector<int8_t>{64, -127, 1, 1}));
  // A scale that a large bias asks for.
  const std::vector<double> least = {1.0, 0.0};
  EXPECT_EQ(QuantizeWeights(weights, {1, 2, 2}, false, least).scale[0], 1.0f);
}

TEST(Observer, MinMaxAndMovingAverage) {
  Observer observer;
  ASSERT_TRUE(observer.Add(std::vector<float>{-1, 2}));
  ASSERT_TRUE(observer.Add(std::vector<float>{-3, 12}));
  EXPECT_EQ(Chosen(observer, RangeMethod::kMinMax), (Range{-3, 12}));
  const Range average = Chosen(observer, RangeMethod::kAverage);
  EXPECT_NEAR(average.low, -1.2, 1e-9);
  EXPECT_NEAR(average.high, 3.0, 1e-9);
}

TEST(Observer, TheRangeAlwaysHoldsZero) {
  Observer observer;
  ASSERT_TRUE(observer.Add(std::vector<float>{3, 4, 5, 6}));
  for (const auto method : {RangeMethod::kMinMax, RangeMethod::kAverage, RangeMethod::kPercentile,
                            RangeMethod::kKl, RangeMethod::kMse}) {
    EXPECT_LE(Chosen(observer, method).low, 0);
    EXPECT_GE(Chosen(observer, method).high, 0);
  }
  Observer zeros;
  ASSERT_TRUE(zeros.Add(std::vector<float>(10, 0.0f)));
  EXPECT_EQ(Chosen(zeros, RangeMethod::kKl), (Range{0, 0}));
}

TEST(Observer, PercentileLeavesOutliersOut) {
  Observer observer;
  ASSERT_TRUE(observer.Add(Normal(100000, 1, 500)));
  const Range range = Chosen(observer, RangeMethod::kPercentile);
  // 0.05 % lie beyond 3.29 deviations on each side; bins are 512 / 4096 wide.
  EXPECT_NEAR(range.high, 3.29, 0.25);
  EXPECT_NEAR(range.low, -3.29, 0.25);
  EXPECT_EQ(Chosen(observer, RangeMethod::kMinMax).high, 500);
}

TEST(Observer, KlAndMseClipALongTail) {
  const std::vector<float> values = Normal(200000, 2, 60);
  Observer observer;
  ASSERT_TRUE(observer.Add(values));
  const Range all = Chosen(observer, RangeMethod::kMinMax);
  for (const auto type : {ActivationType::kU8, ActivationType::kI8Symmetric})
    for (const auto method : {RangeMethod::kKl, RangeMethod::kMse}) {
      const Range range = Chosen(observer, method, type);
      EXPECT_LT(range.high, 55) << Name(method) << " " << Name(type);
      EXPECT_GT(range.high, 1.5) << Name(method) << " " << Name(type);
    }
  EXPECT_LT(SquaredError(values, Chosen(observer, RangeMethod::kMse), ActivationType::kU8),
            SquaredError(values, all, ActivationType::kU8));
}

TEST(Observer, ManySamplesAreAsOneLargeOne) {
  const std::vector<float> values = Normal(50000, 3);
  Observer one, many;
  ASSERT_TRUE(one.Add(values));
  // Small values first: the histogram has to widen.
  std::vector<float> sorted = values;
  std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  for (size_t i = 0; i < sorted.size(); i += 1000)
    ASSERT_TRUE(many.Add(std::span<const float>(sorted).subspan(i, 1000)));
  for (const auto method :
       {RangeMethod::kMinMax, RangeMethod::kPercentile, RangeMethod::kKl, RangeMethod::kMse})
    EXPECT_EQ(Chosen(one, method), Chosen(many, method)) << Name(method);
}

TEST(Observer, RefusesWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Observer observer;
    EXPECT_FALSE(observer.Add(std::vector<float>{1, bad, 2}));
  }
}

}  // namespace
}  // namespace celer::ptq
