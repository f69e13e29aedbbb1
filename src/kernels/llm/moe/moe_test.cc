#include "kernels/llm/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(RouteToken, LargestFirstAndNormalized) {
  const float logits[] = {0.0f, 2.0f, 1.0f, 2.0f};
  const auto routes = RouteToken(logits, 3, true);
  ASSERT_EQ(routes.size(), 3u);
  EXPECT_EQ(routes[0].expert, 1);  // ties go to the lower index
  EXPECT_EQ(routes[1].expert, 3);
  EXPECT_EQ(routes[2].expert, 2);
  EXPECT_NEAR(routes[0].weight + routes[1].weight + routes[2].weight, 1.0f, 1e-6f);
  EXPECT_FLOAT_EQ(routes[0].weight, routes[1].weight);
}

TEST(RouteToken, WithoutNormalizationWeightsAreSoftmaxOverAll) {
  const float logits[] = {1.0f, 1.0f, 1.0f, 1.0f};
  const auto routes = RouteToken(logits, 2, false);
  EXPECT_NEAR(routes[0].weight, 0.25f, 1e-6f);
  EXPECT_NEAR(routes[1].weight, 0.25f, 1e-6f);
}

TEST(RouteToken, HugeLogitsDoNotOverflow) {
  const float logits[] = {1e30f, -1e30f, 3e38f};
  const auto routes = RouteToken(logits, 2, true);
  EXPECT_EQ(routes[0].expert, 2);
  EXPECT_FLOAT_EQ(routes[0].weight, 1.0f);
}

TEST(RouteToken, ANumberThatIsNoneSpoilsAllWeights) {
  for (size_t bad = 0; bad < 40; ++bad) {
    std::vector<float> logits(40);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 11);
    logits[bad] = std::numeric_limits<float>::quiet_NaN();
    for (const Route& route : RouteToken(logits, 6, true)) {
      EXPECT_TRUE(std::isnan(route.weight));
      EXPECT_LT(route.expert, 40);
    }
  }
}

}  // namespace
}  // namespace celer
