// Bytes made by multiplying with the inverse of a scale are those that a division gives, at the middles
// between two bytes and next to them, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "graph/ops/quant/integer.h"

namespace celer::graph {
namespace {

uint8_t ByDivision(float x, float scale, int zero) {
  if (std::isnan(x / scale)) return 0;
  return static_cast<uint8_t>(
      std::clamp(std::nearbyint(x / scale), static_cast<float>(-zero), static_cast<float>(255 - zero)) +
      static_cast<float>(zero));
}

TEST(QuantizeBytes, EqualsADivision) {
  std::mt19937 random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 300; ++round) {
    const float scale = std::exp(std::uniform_real_distribution<float>(-30, 20)(random));
    const int zero = std::uniform_int_distribution<int>(0, 255)(random);
    std::vector<float> x = {0, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
    for (int step = -260; step < 260; ++step) {
      float middle = (static_cast<float>(step) + 0.5f) * scale;
      for (int i = 0; i < 3; ++i) middle = std::nextafter(middle, -kInfinity);
      for (int i = 0; i < 7; ++i, middle = std::nextafter(middle, kInfinity)) x.push_back(middle);
    }
    std::vector<uint8_t> bytes(x.size());
    QuantizeBytes(x.data(), scale, zero, bytes.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(bytes[i], ByDivision(x[i], scale, zero)) << x[i] << " by " << scale << " from " << zero;
  }
}

TEST(QuantizeBytes, ScalesWithoutAnInverse) {
  for (const float scale : {1e-38f, std::numeric_limits<float>::denorm_min(), 1e38f}) {
    const float x[] = {0, scale, -scale, scale * 1.4f, 3e38f, -3e38f};
    uint8_t bytes[6];
    QuantizeBytes(x, scale, 100, bytes, 6);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(bytes[i], ByDivision(x[i], scale, 100)) << x[i] << " " << scale;
  }
}

}  // namespace
}  // namespace celer::graph
