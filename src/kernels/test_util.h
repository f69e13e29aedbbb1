// Shared by kernel tests: seeded data and tolerances that follow from the arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace celer::testing {

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> out(static_cast<size_t>(n));
  // Not std::normal_distribution: its output differs between standard libraries.
  for (float& v : out) v = scale * (static_cast<float>(random()) / 2147483648.0f - 1.0f);
  return out;
}

// A float sum of n products, in any order, is off by at most about n * epsilon times the sum of magnitudes.
inline double SumTolerance(int64_t n, double sum_of_magnitudes) {
  return static_cast<double>(n + 4) * std::numeric_limits<float>::epsilon() * sum_of_magnitudes + 1e-30;
}

}  // namespace celer::testing
