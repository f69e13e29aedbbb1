#include "kernels/shared/activation/activation.h"

#include <gtest/gtest.h>

#include <cmath>

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
  }
  return 0;
}

constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kRelu};

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
        variant.run(kind, gate.data(), up.data(), out.data(), n);
        std::vector<double> expected;
        for (size_t i = 0; i < out.size(); ++i) expected.push_back(InDouble(kind, gate[i]) * up[i]);
        // exp() is off by 2 ulp, erfc by 1.5e-7 of 1; both are then multiplied by x.
        EXPECT_TRUE(testing::AllNear(out, expected,
                                     [&](size_t i) { return std::abs(up[i]) * (5e-7 * std::abs(gate[i])); }))
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
      variant.run(kind, gate, up, out, 5);
      for (int i = 0; i < 3; ++i) EXPECT_NEAR(out[i], 0, 1e-30) << variant.name;
      EXPECT_EQ(out[3], 100.0f) << variant.name;
      EXPECT_EQ(out[4], 1e4f) << variant.name;
    }
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
