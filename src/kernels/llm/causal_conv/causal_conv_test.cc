#include "kernels/llm/causal_conv/causal_conv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

std::vector<float> RunConv(std::vector<float> x, const std::vector<float>& w, int64_t kernel,
                           std::vector<float>* state, const std::vector<int32_t>& counts, int32_t position,
                           ThreadPool& pool, const float* bias = nullptr) {
  const auto channels = std::ssize(w) / kernel;
  std::vector<int32_t> positions, starts{0}, slots;
  for (const int32_t count : counts) {
    for (int32_t t = 0; t < count; ++t) positions.push_back(position + t);
    starts.push_back(static_cast<int32_t>(positions.size()));
    slots.push_back(static_cast<int32_t>(slots.size()));
  }
  const std::vector<int32_t> tokens(positions.size());
  CausalConv({.batch = {.tokens = tokens,
                        .positions = positions,
                        .seq_start = starts,
                        .block_table = {},
                        .logit_rows = {}},
              .w = w.data(),
              .bias = bias,
              .channels = channels,
              .kernel = kernel,
              .x = x.data(),
              .states = {.data = state->data(), .stride = (kernel - 1) * channels, .slots = slots},
              .pool = &pool});
  return x;
}

TEST(CausalConv, MatchesDouble) {
  ThreadPool pool({.threads = 3});
  for (const auto& [channels, kernel, tokens] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                                 {3, 4, 2},
                                                 {64, 4, 9},
                                                 {200, 4, 1},
                                                 {65, 2, 30},
                                                 {7, 16, 40}}) {
    const auto x = testing::RandomFloats(channels * tokens, 1, 2.0f),
               w = testing::RandomFloats(channels * kernel, 2);
    const bool biased = tokens % 2 == 0;
    const auto bias = testing::RandomFloats(channels, 3);
    std::vector<float> state(static_cast<size_t>((kernel - 1) * channels), NAN);
    const auto out = RunConv(x, w, kernel, &state, {static_cast<int32_t>(tokens)}, 0, pool,
                             biased ? bias.data() : nullptr);
    std::vector<double> expected;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = biased ? bias[c] : 0;
        for (int64_t j = 0; j < kernel; ++j)
          if (const int64_t at = t - (kernel - 1) + j; at >= 0)
            sum += double{w[c * kernel + j]} * x[at * channels + c];
        expected.push_back(sum / (1 + std::exp(-sum)));
      }
    // Inputs are up to 2, weights up to 1; the slope of silu is at most 1.1, its own error a few ulps.
    const double tolerance = 1.1 * testing::SumTolerance(kernel + 9, 2.0 * static_cast<double>(kernel) + 1);
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = tolerance})) << channels << "x" << kernel;
  }
}

TEST(CausalConv, ATokenDependsOnItsSequenceAlone) {
  ThreadPool pool({.threads = 3});
  constexpr int64_t kChannels = 131, kKernel = 4, kTokens = 21;
  const auto x = testing::RandomFloats(kChannels * kTokens, 1),
             w = testing::RandomFloats(kChannels * kKernel, 2);
  std::vector<float> state((kKernel - 1) * kChannels);
  const auto whole = RunConv(x, w, kKernel, &state, {kTokens}, 0, pool);
  const auto final_state = state;
  std::vector<float> pieces;
  for (const int64_t count : {1, 1, 2, 9, 1, 7}) {
    const int64_t at = std::ssize(pieces) / kChannels;
    const auto out = RunConv({x.begin() + at * kChannels, x.begin() + (at + count) * kChannels}, w, kKernel,
                             &state, {static_cast<int32_t>(count)}, static_cast<int32_t>(at), pool);
    pieces.insert(pieces.end(), out.begin(), out.end());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(state, final_state);

  std::vector<float> twice = x, states(2 * final_state.size());
  twice.insert(twice.end(), x.begin(), x.end());
  const auto both = RunConv(twice, w, kKernel, &states, {kTokens, kTokens}, 0, pool);
  EXPECT_EQ(std::vector(both.begin(), both.begin() + std::ssize(whole)), whole);
  EXPECT_EQ(std::vector(both.begin() + std::ssize(whole), both.end()), whole);
}

}  // namespace
}  // namespace celer
