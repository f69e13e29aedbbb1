#include "kernels/llm/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "device/aligned_vector.h"
#include "formats/test_rows.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(RouteToken, LargestFirstAndNormalized) {
  const float logits[] = {0.0f, 2.0f, 1.0f, 2.0f};
  const auto routes = RouteToken(logits, 3, {});
  ASSERT_EQ(routes.size(), 3u);
  EXPECT_EQ(routes[0].expert, 1);  // ties go to the lower index
  EXPECT_EQ(routes[1].expert, 3);
  EXPECT_EQ(routes[2].expert, 2);
  EXPECT_NEAR(routes[0].weight + routes[1].weight + routes[2].weight, 1.0f, 1e-6f);
  EXPECT_FLOAT_EQ(routes[0].weight, routes[1].weight);
}

TEST(RouteToken, WithoutNormalizationWeightsAreSoftmaxOverAll) {
  const float logits[] = {1.0f, 1.0f, 1.0f, 1.0f};
  const auto routes = RouteToken(logits, 2, {.normalize = false});
  EXPECT_NEAR(routes[0].weight, 0.25f, 1e-6f);
  EXPECT_NEAR(routes[1].weight, 0.25f, 1e-6f);
}

TEST(RouteToken, HugeLogitsDoNotOverflow) {
  const float logits[] = {1e30f, -1e30f, 3e38f};
  const auto routes = RouteToken(logits, 2, {});
  EXPECT_EQ(routes[0].expert, 2);
  EXPECT_FLOAT_EQ(routes[0].weight, 1.0f);
}

// All forms there are, and parts of them, beside the definition in double.
TEST(RouteToken, EveryFormMatchesDouble) {
  constexpr int64_t kExperts = 24;
  const auto bias = testing::RandomFloats(kExperts, 1), choice_bias = testing::RandomFloats(kExperts, 2);
  for (int number = 0; number < 128; ++number) {
    const auto bit = [&](int i) { return (number >> i & 1) != 0; };
    const RouterForm form = {.sigmoid = bit(0),
                             .bias = bit(1) ? bias.data() : nullptr,
                             .choice_bias = bit(2) ? choice_bias.data() : nullptr,
                             .groups = bit(3) ? 6 : 1,
                             .groups_used = bit(3) ? 3 : 1,
                             .group_by_best_two = bit(4),
                             .normalize = bit(5),
                             .normalize_eps = bit(6) ? 0.25f : 1e-20f,
                             .normalize_floor = bit(6) && bit(4),
                             .scale = bit(6) ? 2.5f : 1.0f};
    const auto logits = testing::RandomFloats(kExperts, number + 10, 3.0f);
    std::vector<double> scores, choice;
    double total = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      const double logit = double{logits[e]} + (form.bias ? bias[e] : 0);
      scores.push_back(form.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit));
      total += scores.back();
    }
    for (int64_t e = 0; e < kExperts; ++e) {
      if (!form.sigmoid) scores[e] /= total;
      choice.push_back(scores[e] + (form.choice_bias ? choice_bias[e] : 0));
    }
    const int64_t size = kExperts / form.groups;
    std::vector<double> best;
    for (int64_t g = 0; g < form.groups; ++g) {
      std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.begin(), members.end(), std::greater<>());
      best.push_back(form.group_by_best_two ? members[0] + members[1] : members[0]);
    }
    std::vector<double> sorted = best;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    std::vector<int32_t> left;
    for (int32_t e = 0; e < kExperts; ++e)
      if (best[e / size] >= sorted[form.groups_used - 1]) left.push_back(e);
    std::sort(left.begin(), left.end(), [&](int32_t a, int32_t b) { return choice[a] > choice[b]; });

    double sum = 0;
    for (int k = 0; k < 5; ++k) sum += scores[left[k]];
    const double eps = form.normalize_eps;
    const double divisor = !form.normalize ? 1 : form.normalize_floor ? std::max(sum, eps) : sum + eps;
    const auto routes = RouteToken(logits, 5, form);
    ASSERT_EQ(routes.size(), 5u);
    for (int k = 0; k < 5; ++k) {
      EXPECT_EQ(routes[k].expert, left[k]) << "form " << number << " rank " << k;
      const double expected = scores[left[k]] / divisor * form.scale;
      // Exponentials are off by an ulp or two, and the sum of 24 of them by as much again.
      EXPECT_NEAR(routes[k].weight, expected, 1e-5 * expected) << "form " << number << " rank " << k;
    }
  }
}

// Scores of experts far below the best one may all be zero, and groups without a positive number are chosen last.
TEST(RouteToken, AFactorForEachExpert) {
  const float logits[] = {1.0f, 3.0f, 2.0f}, factors[] = {5.0f, 2.0f, 0.5f};
  const auto plain = RouteToken(logits, 2, {}), scaled = RouteToken(logits, 2, {.expert_scale = factors});
  EXPECT_FLOAT_EQ(scaled[0].weight, plain[0].weight * 2.0f);
  EXPECT_FLOAT_EQ(scaled[1].weight, plain[1].weight * 0.5f);
}

TEST(RouteToken, SparseMixer) {
  const RouterForm form = {.sparse_mixer = true, .jitter = 0.01f};
  // 2 and 1.98 are within 2 % of each other, 1 is not; of the others 1.98 is alone.
  const float near[] = {1, 1.98f, 2};
  auto routes = RouteToken(near, 2, form);
  EXPECT_EQ(routes[0].expert, 2);
  EXPECT_NEAR(routes[0].weight, 1 / (1 + std::exp(-0.02)), 1e-6);
  EXPECT_EQ(routes[1].expert, 1);
  EXPECT_EQ(routes[1].weight, 1);
  // Negative logits are compared with their own size.
  const float negative[] = {-2.0f, -1.98f, -5};
  routes = RouteToken(negative, 2, form);
  EXPECT_EQ(routes[0].expert, 1);
  EXPECT_NEAR(routes[0].weight, 1 / (1 + std::exp(-0.02)), 1e-6);
  EXPECT_EQ(routes[1].expert, 0);
  EXPECT_EQ(routes[1].weight, 1);
  const float bad[] = {1, NAN, 2};
  for (const Route& route : RouteToken(bad, 2, form)) EXPECT_TRUE(std::isnan(route.weight));
}

TEST(RouteToken, NegativeChoices) {
  const float logits[] = {9, 8, 7, 6, 1, 2};
  const float choice_bias[] = {-20, -30, -40, -50, -5, -6};
  const auto routes = RouteToken(
      logits, 2,
      {.sigmoid = true, .choice_bias = choice_bias, .groups = 3, .groups_used = 1, .normalize = false});
  EXPECT_EQ(routes[0].expert, 4);
  EXPECT_EQ(routes[1].expert, 5);
}

TEST(RouteToken, ANumberThatIsNoneSpoilsAllWeights) {
  const std::vector<float> zeros(40, 0.0f);
  for (const RouterForm& form :
       {RouterForm{}, RouterForm{.sigmoid = true}, RouterForm{.groups = 4, .groups_used = 2},
        RouterForm{.sigmoid = true,
        .choice_bias = zeros.data(),
        .groups = 4,
        .groups_used = 2,
        .group_by_best_two = true},
        RouterForm{.normalize_eps = 1e-12f, .normalize_floor = true}})
    for (size_t bad = 0; bad < 40; ++bad) {
      std::vector<float> logits(40);
      for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 11);
      logits[bad] = std::numeric_limits<float>::quiet_NaN();
      for (const Route& route : RouteToken(logits, 6, form)) {
        EXPECT_TRUE(std::isnan(route.weight));
        EXPECT_LT(route.expert, 40);
      }
    }
}

// Matrices of a mixture, packed for the chosen kernels where these pack.
class Mixture {
 public:
  Mixture(DType dtype, int64_t experts, int64_t hidden, int64_t width, bool gated, bool biased)
      : router_(Matrix(DType::kF32, experts, hidden)) {
    for (int64_t e = 0; e < experts; ++e) {
      ExpertWeights one;
      if (gated) one.gate = Matrix(dtype, width, hidden);
      one.up = Matrix(dtype, width, hidden);
      one.down = Matrix(dtype, hidden, width);
      if (biased) {
        one.gate_bias = gated ? Bias(width) : nullptr;
        one.up_bias = Bias(width);
        one.down_bias = Bias(hidden);
      }
      experts_.push_back(one);
    }
    norm_ = testing::RandomFloats(hidden, 5);
  }

  // What is added to x[tokens, hidden].
  std::vector<float> Run(const std::vector<float>& x, const MoeArgs& form, ThreadPool& pool) const {
    std::vector<float> out = x;
    MoeArgs args = form;
    args.x = out.data();
    args.tokens = std::ssize(x) / router_.cols;
    args.norm = norm_.data();
    args.router = router_;
    args.experts = experts_;
    args.pool = &pool;
    Moe(args);
    return out;
  }

 private:
  WeightView Matrix(DType dtype, int64_t rows, int64_t cols) {
    const int64_t row_bytes = *BytesFor(dtype, cols);
    std::vector<std::byte>& data = memory_.emplace_back(static_cast<size_t>(rows * row_bytes));
    for (int64_t r = 0; r < rows; ++r)
      std::ranges::copy(RandomWeightRow(dtype, cols, seed_++), data.data() + r * row_bytes);
    WeightView view = {
        .dtype = dtype, .rows = rows, .cols = cols, .data = data.data(), .row_bytes = row_bytes};
    const MatmulKernels& kernels = ChosenMatmul();
    const int64_t bytes = kernels.packed_bytes ? kernels.packed_bytes(view) : 0;
    if (bytes == 0) return view;
    packed_.emplace_back(static_cast<size_t>(bytes));
    ThreadPool pool({.threads = 1});
    kernels.pack(view, pool, packed_.back().data());
    return PackedView(view, kernels, packed_.back().data());
  }
  const float* Bias(int64_t n) { return biases_.emplace_back(testing::RandomFloats(n, seed_++)).data(); }

  uint32_t seed_ = 1;
  std::deque<std::vector<std::byte>> memory_;
  std::deque<AlignedVector<std::byte>> packed_;
  std::deque<std::vector<float>> biases_;
  std::vector<float> norm_;
  WeightView router_;
  std::vector<ExpertWeights> experts_;
};

// Few tokens run their experts together, many by turns: what a token gets is the same bits, with any number of threads.
TEST(Moe, FewTokensGetTheBitsOfMany) {
  constexpr int64_t kTokens = 60, kHidden = 96, kExperts = 12;
  for (const DType dtype : {DType::kQ4_0, DType::kQ8_0, DType::kBf16, DType::kF32})
    for (const int64_t width : {int64_t{32}, int64_t{160}})
      for (const bool gated : {true, false})
        for (const bool odd : {false, true}) {
          SCOPED_TRACE(::testing::Message() << Name(dtype) << " " << width << (gated ? " gated" : "")
                                            << (odd ? " with biases" : ""));
          const Mixture mixture(dtype, kExperts, kHidden, width, gated, odd);
          MoeArgs form;
          form.weight_on_input = odd;
          form.experts_per_token = 3;
          form.residual_scale = odd ? 0.5f : 1.0f;
          const auto x = testing::RandomFloats(kTokens * kHidden, 77);
          ThreadPool three({.threads = 3});
          const std::vector<float> together = mixture.Run(x, form, three);
          for (const int threads : {1, 3}) {
            ThreadPool pool({.threads = threads});
            for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{9}, int64_t{42}})
              for (int64_t first = 0; first + tokens <= kTokens; first += 37) {
                const auto begin = x.begin() + first * kHidden;
                const std::vector<float> few = mixture.Run({begin, begin + tokens * kHidden}, form, pool);
                ASSERT_TRUE(std::equal(few.begin(), few.end(), together.begin() + first * kHidden))
                    << threads << " threads, " << tokens << " tokens from " << first;
              }
          }
        }
}

}  // namespace
}  // namespace celer
