#include "kernels/shared/activation/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

double InDouble(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return 0;
}

constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kRelu, Activation::kRelu2};

TEST(Activation, EveryVariantMatchesDouble) {
  for (const auto& variant : ActivateMulVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    for (const Activation kind : kKinds)
      for (const int64_t n : {1, 3, 4, 7, 8, 15, 33, 1000}) {
        const auto gate = testing::RandomFloats(n, 1, 12.0f), up = testing::RandomFloats(n, 2);
        std::vector<float> out(gate.size());
        variant.run(kind, gate.data(), up.data(), out.data(), n, 0);
        std::vector<double> expected;
        for (size_t i = 0; i < out.size(); ++i) expected.push_back(InDouble(kind, gate[i]) * up[i]);
        // exp() is off by 2 ulp, erfc by 1.5e-7 of 1; both are then multiplied by x.
        EXPECT_TRUE(testing::AllNear(out, expected,
                                     [&](size_t i) {
                                       const double x = std::abs(gate[i]),
                                                    power = kind == Activation::kRelu2 ? 2 : 1;
                                       return std::abs(up[i]) * 5e-7 * std::pow(x, power);
                                     }))
            << variant.name << " kind " << static_cast<int>(kind);
      }
  }
}

TEST(Activation, LargeInputs) {
  const float gate[] = {-1e4f, -100.0f, 0.0f, 100.0f, 1e4f};
  const float up[] = {1, 1, 1, 1, 1};
  for (const auto& variant : ActivateMulVariants()) {
    if (!variant.RunsHere()) continue;  // named by the test above
    for (const Activation kind : kKinds) {
      float out[5];
      variant.run(kind, gate, up, out, 5, 0);
      for (int i = 0; i < 3; ++i) EXPECT_NEAR(out[i], 0, 1e-30) << variant.name;
      const bool squares = kind == Activation::kRelu2;
      EXPECT_EQ(out[3], squares ? 1e4f : 100.0f) << variant.name;
      EXPECT_EQ(out[4], squares ? 1e8f : 1e4f) << variant.name;
    }
  }
}

TEST(Activation, ClampedSwigluOfEveryVariantMatchesDouble) {
  for (const auto& variant : ActivateMulVariants()) {
    if (!variant.RunsHere()) continue;  // named by the first test
    for (const float limit : {7.0f, 0.5f})
      for (const int64_t n : {1, 3, 4, 7, 8, 15, 33, 1000}) {
        const auto gate = testing::RandomFloats(n, 1, 12.0f), up = testing::RandomFloats(n, 2, 12.0f);
        std::vector<float> out(gate.size());
        variant.run(Activation::kSilu, gate.data(), up.data(), out.data(), n, limit);
        std::vector<double> expected, tolerance;
        for (size_t i = 0; i < out.size(); ++i) {
          const double g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
          expected.push_back(g / (1 + std::exp(-1.702 * g)) * (u + 1));
          // The product in the exponent is off by half an ulp, at most 20 * 2^-24, as is u + 1 of the limit's.
          tolerance.push_back(std::abs(g) * (2e-6 * std::abs(u + 1) + 1e-7 * limit));
        }
        EXPECT_TRUE(testing::AllNear(out, expected, [&](size_t i) { return tolerance[i]; })) << variant.name;
      }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float gate[] = {nan, 1, -1e30f, 1e30f}, up[] = {1, nan, 1e30f, -1e30f};
    float out[4];
    variant.run(Activation::kSilu, gate, up, out, 4, 7);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << variant.name;
    EXPECT_NEAR(out[2], 0, 1e-30) << variant.name;
    EXPECT_NEAR(out[3], -42, 1e-3) << variant.name;
  }
}

TEST(Activation, AnElementDoesNotDependOnItsPlace) {
  const auto gate = testing::RandomFloats(67, 3, 8.0f), up = testing::RandomFloats(67, 4);
  for (const Activation kind : kKinds) {
    std::vector<float> together(gate.size());
    ActivateMul(kind, gate.data(), up.data(), together.data(), 67);
    for (size_t i = 0; i < gate.size(); ++i) {
      float alone = 0;
      ActivateMul(kind, &gate[i], &up[i], &alone, 1);
      ASSERT_EQ(alone, together[i]) << i;
    }
    std::vector<float> in_place = gate;
    ActivateMul(kind, in_place.data(), up.data(), in_place.data(), 67);
    EXPECT_EQ(in_place, together);
  }
}

}  // namespace
}  // namespace celer
