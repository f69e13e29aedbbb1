// Shared by tests of kernels and of what stands on them: seeded data, tolerances that follow from the
// arithmetic, and comparisons that no value which is not finite gets through.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace celer::testing {

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> out(n);
  // Not std::normal_distribution: its output differs between standard libraries.
  for (float& v : out) v = scale * (static_cast<float>(random()) / 2147483648.0f - 1.0f);
  return out;
}

// A float sum of n products, in any order, is off by at most about n * epsilon times the sum of magnitudes.
inline double SumTolerance(int64_t n, double sum_of_magnitudes) {
  return static_cast<double>(n + 4) * std::numeric_limits<float>::epsilon() * sum_of_magnitudes + 1e-30;
}

// How far `got` is from what was expected, for the largest of many: std::max(worst, NaN) keeps `worst`, so
// what is not finite counts as infinitely far off, unless it was expected.
inline double Off(double got, double expected) {
  if (std::isfinite(got) && std::isfinite(expected)) return std::abs(got - expected);
  const bool same = got == expected || (std::isnan(got) && std::isnan(expected));
  return same ? 0 : std::numeric_limits<double>::infinity();
}

// An element may be off by absolute + relative * |expected|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// Two sequences of numbers, element by element; `tolerance(i)` is how far element i may be off. What is not
// finite passes only where the same was expected.
//   EXPECT_TRUE(AllNear(out, expected, {.relative = 1e-6})) << variant.name;
template <class Got, class Expected, std::invocable<size_t> ToleranceOf>
::testing::AssertionResult AllNear(const Got& got, const Expected& expected, ToleranceOf tolerance) {
  if (std::size(got) != std::size(expected))
    return ::testing::AssertionFailure()
           << std::size(got) << " values, expected " << std::size(expected) << " of them";
  size_t count = 0, first = 0, worst = 0;
  double most = -1;  // of how far beyond its tolerance an element is
  for (size_t i = 0; i < std::size(expected); ++i) {
    const double off = Off(got[i], expected[i]), allowed = tolerance(i);
    if (off <= allowed && std::isfinite(off)) continue;
    if (count++ == 0) first = i;
    const double beyond = std::isfinite(off - allowed) ? off - allowed : std::numeric_limits<double>::max();
    if (beyond > most) most = beyond, worst = i;
  }
  if (count == 0) return ::testing::AssertionSuccess();
  const auto describe = [&](::testing::AssertionResult& out, const char* which, size_t i) {
    out << which << " at " << i << ": got " << static_cast<double>(got[i]) << ", expected "
        << static_cast<double>(expected[i]) << ", off by " << Off(got[i], expected[i]) << ", allowed "
        << tolerance(i);
  };
  auto failure = ::testing::AssertionFailure()
                 << count << " of " << std::size(expected) << " values are too far off; ";
  describe(failure, "the first", first);
  if (worst != first) describe(failure, "; the worst", worst);
  return failure;
}

template <class Got, class Expected>
::testing::AssertionResult AllNear(const Got& got, const Expected& expected, Tolerance tolerance) {
  return AllNear(got, expected, [&](size_t i) {
    const double size = std::abs(static_cast<double>(expected[i]));
    return tolerance.absolute + (std::isfinite(size) ? tolerance.relative * size : 0);
  });
}

// Bytes can be equal and NaN all the same: what compares bits asks this too.
template <class Values>
::testing::AssertionResult AllFinite(const Values& values) {
  for (size_t i = 0; i < std::size(values); ++i)
    if (!std::isfinite(values[i]))
      return ::testing::AssertionFailure() << values[i] << " at " << i << " of " << std::size(values);
  return ::testing::AssertionSuccess();
}

// The largest difference over the largest expected value. Infinite if there is nothing to compare, or if a
// value is not finite.
template <class Got, class Expected>
double WorstRelative(const Got& got, const Expected& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::size(got) != std::size(expected) || std::empty(got) || !AllFinite(got) || !AllFinite(expected))
    return kInfinity;
  double scale = 0, worst = 0;
  for (size_t i = 0; i < std::size(expected); ++i) {
    scale = std::max(scale, std::abs(static_cast<double>(expected[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
  }
  return worst == 0 ? 0 : scale == 0 ? kInfinity : worst / scale;
}

// The length of the difference over the length of what was expected, both as vectors. Infinite as above.
template <class Got, class Expected>
double RelativeError(const Got& got, const Expected& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::size(got) != std::size(expected) || std::empty(got) || !AllFinite(got) || !AllFinite(expected))
    return kInfinity;
  double error = 0, size = 0;
  for (size_t i = 0; i < std::size(expected); ++i) {
    const double off = static_cast<double>(got[i]) - expected[i];
    error += off * off;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return error == 0 ? 0 : size == 0 ? kInfinity : std::sqrt(error / size);
}

}  // namespace celer::testing
