// Rejection sampling of drafts: tokens are distributed as without drafts.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/sample/sampler.h"

namespace celer {
namespace {

const std::vector<float> kTarget = {1.0f, 0.2f, -0.5f, 2.0f, 0.0f, 1.5f, -2.0f, 0.7f};
const std::vector<float> kDraft = {2.0f, -1.0f, 0.5f, 1.0f, 0.3f, -0.5f, 1.8f, 0.0f};

// Pearson's statistic against a distribution, and 5 standard deviations above its mean.
void ExpectDrawn(const std::map<int32_t, int>& counts, const Distribution& p, int total, const char* what) {
  double chi2 = 0;
  int drawn = 0;
  for (const auto& [token, probability] : p) {
    const double expected = double{probability} * total;
    const auto it = counts.find(token);
    const double got = it == counts.end() ? 0 : it->second;
    drawn += static_cast<int>(got);
    chi2 += (got - expected) * (got - expected) / expected;
  }
  EXPECT_EQ(drawn, total) << what << ": tokens that cannot be drawn were";
  const double freedom = static_cast<double>(p.size()) - 1;
  EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 1e-9) << what;
}

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> Cases() {
  return {{"temperature 1", {.temperature = 1}},
          {"temperature 0.6", {.temperature = 0.6f}},
          {"top-k 3", {.temperature = 1, .top_k = 3}},
          {"top-p 0.7", {.temperature = 1, .top_p = 0.7f}},
          {"min-p 0.2", {.temperature = 1.3f, .min_p = 0.2f}},
          {"typical 0.6", {.temperature = 1, .typical_p = 0.6f}},
          {"penalties", {.temperature = 1, .repetition_penalty = 1.4f, .logit_bias = {{3, -1.0f}}}},
          {"allowed", {.temperature = 1, .allowed_tokens = {1, 3, 6}}}};
}

TEST(SamplerDraft, DistributionIsWhatNextDrawsFrom) {
  constexpr int kDraws = 20000;
  const int32_t prompt[] = {5, 5, 0};
  for (const auto& [name, params] : Cases()) {
    Distribution p;
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      SamplingParams seeded = params;
      seeded.seed = static_cast<uint64_t>(i);
      Sampler sampler(seeded, prompt);
      if (i == 0) p = sampler.DistributionOf(kTarget);
      ++counts[sampler.Next(kTarget).token];
    }
    double sum = 0;
    for (const TokenProbability& one : p) sum += double{one.probability};
    EXPECT_NEAR(sum, 1, 1e-5) << name;
    ExpectDrawn(counts, p, kDraws, name);
  }
}

TEST(SamplerDraft, VerifyDrawsFromTheTarget) {
  constexpr int kDraws = 20000;
  const int32_t prompt[] = {5, 5, 0};
  for (const auto& [name, params] : Cases()) {
    Distribution p;
    std::map<int32_t, int> counts, drafts;
    int accepted = 0;
    double overlap = 0;
    for (int i = 0; i < kDraws; ++i) {
      SamplingParams seeded = params;
      seeded.seed = static_cast<uint64_t>(i);
      Sampler sampler(seeded, prompt);
      const Distribution q = sampler.DistributionOf(kDraft);
      if (i == 0) {
        p = sampler.DistributionOf(kTarget);
        for (const auto& [token, probability] : p)
          for (const TokenProbability& other : q)
            if (other.token == token) overlap += double{std::min(probability, other.probability)};
        ASSERT_LT(overlap, 0.9) << "they must differ to show anything";
      }
      const int32_t draft = sampler.DrawDraft(q);
      ++drafts[draft];
      const int32_t token = sampler.Verify(kTarget, draft, q).token;
      ++counts[token];
      accepted += token == draft;
    }
    ExpectDrawn(counts, p, kDraws, name);
    // As many are accepted as can be.
    EXPECT_NEAR(static_cast<double>(accepted) / kDraws, overlap, 5 * std::sqrt(0.25 / kDraws)) << name;
  }
}

TEST(SamplerDraft, WithoutATemperatureTheLargestWins) {
  Sampler sampler({.logprobs = 1}, {});
  const Distribution right = {{3, 1.0f}}, wrong = {{2, 1.0f}};
  EXPECT_EQ(sampler.Verify(kTarget, 3, right).token, 3);
  const Sampler::Choice choice = sampler.Verify(kTarget, 2, wrong);
  EXPECT_EQ(choice.token, 3);
  EXPECT_EQ(choice.top.at(0).token, 3);
  EXPECT_NEAR(choice.logprob, 2.0 - LogSumExp(kTarget), 1e-5);
  const std::vector<float> bad(8, std::nanf(""));
  EXPECT_EQ(sampler.Verify(bad, 2, wrong).token, Sampler::kNoToken);
}

// Every token once.
class OnceEach : public TokenMask {
 public:
  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<OnceEach>(*this); }
  void Allow(std::span<uint32_t> bits) override { bits[0] = left_; }
  void Accept(int32_t token) override { left_ &= ~(1u << token); }

 private:
  uint32_t left_ = 0xff;
};

TEST(SamplerDraft, RewindForgetsWhatWasOnTrial) {
  const SamplingParams params{.temperature = 1, .frequency_penalty = 1, .seed = 3};
  Sampler sampler(params, {}), other(params, {});
  for (Sampler* s : {&sampler, &other}) {
    s->set_mask(std::make_unique<OnceEach>());
    s->Forbid({3}, 2);
  }
  for (int i = 0; i < 8; ++i) {
    sampler.Mark();
    for (int k = 0; k < i % 4 && i + k < 8; ++k) sampler.Next(kDraft);
    sampler.Rewind();
    EXPECT_EQ(sampler.Next(kTarget).token, other.Next(kTarget).token) << i;
  }
  EXPECT_EQ(sampler.Next(kTarget).token, Sampler::kNoneAllowed);
  EXPECT_TRUE(sampler.DistributionOf(kTarget).empty());
}

}  // namespace
}  // namespace celer
