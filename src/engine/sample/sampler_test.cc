#include "engine/sample/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace celer {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 0.0f, -1.0f};

std::map<int32_t, int> Histogram(SamplingParams params, std::span<const float> logits, int draws = 4000) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    params.seed = static_cast<uint64_t>(i);
    ++counts[Sampler(params, {}).Next(logits).token];
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLargest) {
  Sampler sampler({}, {});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sampler.Next(kLogits).token, 1);
}

TEST(Sampler, SameSeedSameTokens) {
  SamplingParams params;
  params.temperature = 1;
  params.seed = 42;
  Sampler a(params, {}), b(params, {});
  params.seed = 43;
  Sampler c(params, {});
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t token = a.Next(kLogits).token;
    EXPECT_EQ(token, b.Next(kLogits).token);
    different += token != c.Next(kLogits).token;
  }
  EXPECT_GT(different, 10);
}

TEST(Sampler, TemperatureOneFollowsTheSoftmax) {
  SamplingParams params;
  params.temperature = 1;
  const int draws = 4000;
  const auto counts = Histogram(params, kLogits, draws);
  const double total = LogSumExp(kLogits);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] - total);
    const double sigma = std::sqrt(draws * p * (1 - p));
    EXPECT_NEAR(counts.contains(static_cast<int32_t>(i)) ? counts.at(static_cast<int32_t>(i)) : 0, draws * p,
                4.5 * sigma);
  }
}

TEST(Sampler, TopKKeepsKOfThem) {
  SamplingParams params;
  params.temperature = 5;
  params.top_k = 2;
  const auto counts = Histogram(params, kLogits);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHoldsIt) {
  SamplingParams params;
  params.temperature = 1;  // probabilities 0.086 0.636 0.234 0.032 0.012
  params.top_p = 0.6f;
  EXPECT_EQ(Histogram(params, kLogits).size(), 1u);
  params.top_p = 0.65f;
  EXPECT_EQ(Histogram(params, kLogits).size(), 2u);
  params.top_p = 0.9f;
  EXPECT_EQ(Histogram(params, kLogits).size(), 3u);
}

TEST(Sampler, MinPIsRelativeToTheLargest) {
  SamplingParams params;
  params.temperature = 1;
  params.min_p = 0.3f;  // 0.636 * 0.3 = 0.19
  const auto counts = Histogram(params, kLogits);
  EXPECT_EQ(counts.size(), 2u);
}

TEST(Sampler, TypicalPrefersTheExpectedSurprise) {
  SamplingParams params;
  params.temperature = 1;
  params.typical_p = 0.2f;
  // Entropy is 1.00 nats; surprises are 2.45 0.45 1.45 3.45 4.45: token 2 is nearest and holds 0.234.
  const auto counts = Histogram(params, kLogits);
  EXPECT_EQ(counts.size(), 1u);
  EXPECT_TRUE(counts.contains(2));
}

TEST(Sampler, RepetitionPenaltyCountsPromptAndOutput) {
  SamplingParams params;
  params.repetition_penalty = 4;
  const int32_t prompt[] = {1};
  Sampler sampler(params, prompt);
  EXPECT_EQ(sampler.Next(kLogits).token, 2);  // 3 / 4 < 2
  EXPECT_EQ(sampler.Next(kLogits).token, 0);  // 2 / 4 < 1
  EXPECT_EQ(sampler.Next(kLogits).token, 1);  // 0.75 is the largest left
}

TEST(Sampler, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParams params;
  params.presence_penalty = 1.5f;
  const int32_t prompt[] = {1, 1, 1};
  Sampler presence(params, prompt);
  EXPECT_EQ(presence.Next(kLogits).token, 1);  // the prompt does not count
  EXPECT_EQ(presence.Next(kLogits).token, 2);
  EXPECT_EQ(presence.Next(kLogits).token, 1);  // 3 - 1.5 is subtracted once only
  params = {};
  params.frequency_penalty = 0.6f;
  Sampler frequency(params, {});
  EXPECT_EQ(frequency.Next(kLogits).token, 1);
  EXPECT_EQ(frequency.Next(kLogits).token, 1);  // 2.4
  EXPECT_EQ(frequency.Next(kLogits).token, 2);  // 1.8 < 2
}

TEST(Sampler, LogitBias) {
  SamplingParams params;
  params.logit_bias = {{4, 10.0f}};
  EXPECT_EQ(Sampler(params, {}).Next(kLogits).token, 4);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplingParams params;
  params.logprobs = 2;
  params.logit_bias = {{4, 10.0f}};
  const auto choice = Sampler(params, {}).Next(kLogits);
  const double total = LogSumExp(kLogits);
  EXPECT_NEAR(choice.logprob, -1.0 - total, 1e-5);
  ASSERT_EQ(choice.top.size(), 2u);
  EXPECT_EQ(choice.top[0].token, 1);
  EXPECT_NEAR(choice.top[0].logprob, 3.0 - total, 1e-5);
  EXPECT_EQ(choice.top[1].token, 2);
}

TEST(Sampler, LogitsThatAreNotFiniteGiveNoToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0f, 1.0f})
    for (size_t at = 0; at < 37; ++at) {
      SamplingParams params;
      params.temperature = temperature;
      Sampler sampler(params, {});
      std::vector<float> logits(37, -2.0f);
      for (const float bad : {nan, -nan, inf}) {
        logits[at] = bad;
        EXPECT_EQ(sampler.Next(logits).token, Sampler::kNoToken);
      }
      // A token that cannot be is no fault, as long as there is another.
      std::fill(logits.begin(), logits.end(), -inf);
      EXPECT_EQ(sampler.Next(logits).token, Sampler::kNoToken);
      logits[at] = -3e38f;
      EXPECT_EQ(sampler.Next(logits).token, static_cast<int32_t>(at));
    }
}

TEST(SamplingParams, BadValuesAreRefusedWithTheirName) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = Validate(params, 100);
    return status ? std::string("accepted") : status.error().message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_NE(message([&](auto& p) { p.temperature = nan; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.temperature = -1; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.temperature = inf; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.top_p = 0; }).find("top-p"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.top_p = 1.5f; }).find("top-p"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.min_p = -0.1f; }).find("min-p"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.top_k = -1; }).find("top-k"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.repetition_penalty = 0; }).find("repetition"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.presence_penalty = 3; }).find("presence"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.logit_bias = {{100, 1.0f}}; }).find("100"), std::string::npos);
  EXPECT_NE(message([&](auto& p) { p.logit_bias = {{5, nan}}; }).find("bias"), std::string::npos);
  EXPECT_EQ(message([&](auto&) {}), "accepted");
}

TEST(Sampler, AlternativesThatAreImpossibleAreReportedToo) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {kNever, 1, kNever, 2, kNever};
  Sampler sampler({.logprobs = 4}, {});
  const auto choice = sampler.Next(logits);
  ASSERT_EQ(choice.top.size(), 4u);
  const int32_t tokens[] = {3, 1, 0, 2};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(choice.top[i].token, tokens[i]) << i;
  EXPECT_TRUE(std::isfinite(choice.top[1].logprob));
  EXPECT_EQ(choice.top[2].logprob, kNever);
}

}  // namespace
}  // namespace celer
