#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "celer/eval.h"

namespace celer {
namespace {

std::vector<float> LogProbs(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(Divergence, OfEqualDistributionsIsZero) {
  const auto p = LogProbs({0.5f, 0.25f, 0.125f, 0.0625f, 0.0625f});
  const Agreement at = CompareDistributions(p, p);
  EXPECT_EQ(at.divergence, 0);
  EXPECT_TRUE(at.same_top);
  EXPECT_EQ(at.shared_top5, 5);
}

TEST(Divergence, ByHand) {
  const auto p = LogProbs({0.5f, 0.5f}), q = LogProbs({0.25f, 0.75f});
  EXPECT_NEAR(CompareDistributions(p, q).divergence, 0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75), 1e-7);
  EXPECT_NEAR(CompareDistributions(q, p).divergence, 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
}

TEST(Divergence, TopTokens) {
  const auto p = LogProbs({0.30f, 0.20f, 0.15f, 0.12f, 0.10f, 0.07f, 0.06f});
  const auto q = LogProbs({0.20f, 0.30f, 0.15f, 0.12f, 0.06f, 0.07f, 0.10f});
  const Agreement at = CompareDistributions(p, q);
  EXPECT_FALSE(at.same_top);
  EXPECT_EQ(at.shared_top5, 4);
}

TEST(Divergence, LogSoftmaxSumsToOneAndRefusesWhatIsNoNumber) {
  std::vector<float> logits = {1, 2, 3, -40};
  ASSERT_TRUE(LogSoftmax(logits));
  double sum = 0;
  for (const float v : logits) sum += std::exp(v);
  EXPECT_NEAR(sum, 1, 1e-6);
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& bad : {std::vector{kNan, 1.0f}, std::vector{1.0f, kNan},
                                        std::vector{kInf, 1.0f}, std::vector{-kInf, -kInf}}) {
    std::vector<float> copy = bad;
    EXPECT_FALSE(LogSoftmax(copy));
  }
  std::vector<float> masked = {-kInf, 0};  // a token that cannot be is fine
  EXPECT_TRUE(LogSoftmax(masked));
}

TEST(Divergence, PercentilesAreNearestRanks) {
  Divergence d;
  for (int i = 100; i >= 1; --i) d.Add({.divergence = i / 100.0, .same_top = i > 10, .shared_top5 = 4});
  EXPECT_NEAR(d.Percentile(99), 0.99, 1e-6);
  EXPECT_NEAR(d.Percentile(100), 1, 1e-6);
  EXPECT_NEAR(d.Percentile(0), 0.01, 1e-6);
  EXPECT_NEAR(d.Mean(), 0.505, 1e-6);
  EXPECT_NEAR(d.Max(), 1, 1e-6);
  EXPECT_NEAR(d.SameTop(), 0.9, 1e-9);
  EXPECT_NEAR(d.SharedTop5(), 0.8, 1e-9);
}

}  // namespace
}  // namespace celer
