// A decode step in one kernel against the same step as one kernel per operator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/device.h"
#include "device/gpu/gpu_code.h"
#include "kernels/shared/test_util.h"
#include "models/cuda/decoder_test_util.h"

namespace celer {
namespace {

struct Shape {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, window;
  bool bias;
};

DecoderConfig ConfigOf(const Shape& shape) {
  DecoderConfig config = FromLlmShape({{.layers = 3,
                                        .hidden = shape.hidden,
                                        .intermediate = shape.intermediate,
                                        .vocab = 1000,
                                        .heads = shape.heads,
                                        .kv_heads = shape.kv_heads,
                                        .head_dim = shape.head_dim,
                                        .qkv_bias = shape.bias},
                                       {},
                                       "test"});
  if (shape.window > 0) {
    config.sliding_window = shape.window;
    config.windowed_layer = {true, false, true};
  }
  return config;
}

// Groups of columns need rows that they divide.
bool FitsGroups(const Shape& shape, const WeightOptions& weights) {
  return weights.group == 0 ||
         (shape.hidden % weights.group == 0 && shape.intermediate % weights.group == 0 &&
          shape.heads * shape.head_dim % weights.group == 0);
}

// Whether the kernel of 5 to 16 tokens fits into a block's shared memory; not into 99 KB.
bool BatchKernelFits() {
  return CodeOnGpu(0).shared_bytes >= 160 * 1024;
}

// Logits of every step: `prompts[i]` tokens first, then one token of each of the first `counts[step]`
// sequences.
std::vector<float> RunCounts(const Shape& shape, const char* weights, const std::vector<int>& prompts,
                             const std::vector<size_t>& counts, bool whole_step) {
  constexpr int64_t kBlocks = 64;  // of 16 positions, for each sequence
  CudaDecoderOptions options;
  options.weights = *WeightOptions::Parse(weights);
  options.context = kBlocks * 16;
  options.max_tokens = 1024;
  options.launch = whole_step ? StepLaunch::kFused : StepLaunch::kGraph;
  const auto decoder =
      MakeRandomDecoder(ConfigOf(shape), options, kBlocks * static_cast<int64_t>(prompts.size()));
  if (!decoder) return {};
  EXPECT_EQ(decoder->decodes_in_one_kernel(), whole_step && FitsGroups(shape, options.weights));
  // Blocks of a sequence do not lie next to each other.
  std::vector<int32_t> table, positions, tokens;
  for (size_t i = 0; i < prompts.size(); ++i)
    for (int64_t b = 0; b < kBlocks; ++b)
      table.push_back(
          static_cast<int32_t>(b * static_cast<int64_t>(prompts.size()) + static_cast<int64_t>(i)));
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompts[i])), at(prompt.size());
    for (size_t j = 0; j < prompt.size(); ++j) prompt[j] = static_cast<int32_t>((j * 37 + i * 11 + 5) % 1000);
    std::iota(at.begin(), at.end(), 0);
    const std::vector<int32_t> starts = {0, prompts[i]};
    const auto status = decoder->Forward({.tokens = prompt,
                                          .positions = at,
                                          .seq_start = starts,
                                          .block_table = std::span(table).subspan(i * kBlocks, kBlocks),
                                          .max_blocks = kBlocks,
                                          .logit_rows = {}});
    EXPECT_TRUE(status) << status.error().message();
    positions.push_back(prompts[i]);
    tokens.push_back(static_cast<int32_t>(100 + i));
  }
  std::vector<float> all;
  std::vector<int32_t> starts(prompts.size() + 1);
  std::iota(starts.begin(), starts.end(), 0);
  for (const size_t count : counts) {
    const auto queued = decoder->Decode({.tokens = std::span(tokens).first(count),
                                         .positions = std::span(positions).first(count),
                                         .seq_start = std::span(starts).first(count + 1),
                                         .block_table = std::span(table).first(count * kBlocks),
                                         .max_blocks = kBlocks,
                                         .logit_rows = {}});
    EXPECT_TRUE(queued) << queued.error().message();
    auto logits = decoder->Logits();
    if (!logits) {
      ADD_FAILURE() << logits.error().message();
      return {};
    }
    all.insert(all.end(), logits->begin(), logits->end());
    for (size_t i = 0; i < count; ++i) ++positions[i], tokens[i] = (tokens[i] * 7 + 3) % 1000;
  }
  return all;
}

std::vector<float> RunSteps(const Shape& shape, const char* weights, const std::vector<int>& prompts,
                            int steps, bool whole_step) {
  return RunCounts(shape, weights, prompts, std::vector<size_t>(static_cast<size_t>(steps), prompts.size()),
                   whole_step);
}

// The largest relative error of a token's 1000 logits.
double RowError(const std::vector<float>& got, const std::vector<float>& wanted) {
  double most = 0;
  for (size_t row = 0; row < wanted.size(); row += 1000)
    most = std::max(most, testing::RelativeError(std::span(got).subspan(row, 1000),
                                                 std::span(wanted).subspan(row, 1000)));
  return most;
}

class DecodeStep : public ::testing::TestWithParam<Shape> {};

TEST_P(DecodeStep, EqualsOneKernelPerOperator) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights : {"bf16", "int8", "int4-g128"})
    // Prompts of up to 16 tokens have bf16 activations in one kernel and not in the other.
    for (const std::vector<int>& prompts :
         {std::vector<int>{17}, {600}, {250, 17, 600}, {18, 500, 31, 255}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << prompts.size() << " from " << prompts[0]);
      const std::vector<float> one = RunSteps(GetParam(), weights, prompts, 6, true);
      const std::vector<float> many = RunSteps(GetParam(), weights, prompts, 6, false);
      ASSERT_EQ(one.size(), many.size());
      // The sums over keys have another order, and integer products round activations to 1 / 16256.
      EXPECT_LT(testing::RelativeError(one, many), 1e-3);
      EXPECT_EQ(one, RunSteps(GetParam(), weights, prompts, 6, true)) << "differs from run to run";
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeStep,
                         ::testing::Values(Shape{512, 1408, 8, 8, 64, 0, false},
                                           Shape{576, 1536, 9, 3, 64, 0, true},
                                           Shape{1024, 2816, 8, 8, 128, 0, false},
                                           Shape{1024, 2048, 16, 2, 128, 100, false},
                                           Shape{640, 1000, 10, 5, 48, 0, false}));

TEST(DecodeStepCompany, ASequenceDoesNotSeeItsCompany) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  const Shape shape{1024, 2816, 16, 4, 128, 0, false};
  for (const char* weights : {"bf16", "int8", "int4-g128"}) {
    const std::vector<float> alone = RunSteps(shape, weights, {300}, 4, true);
    const std::vector<float> first_of_four = RunSteps(shape, weights, {300, 20, 40, 513}, 4, true);
    ASSERT_EQ(first_of_four.size(), 4 * alone.size());
    for (size_t step = 0; step < 4; ++step)
      for (size_t i = 0; i < 1000; ++i)
        ASSERT_EQ(alone[step * 1000 + i], first_of_four[step * 4000 + i]) << weights << " step " << step;
  }
}

// Five to sixteen tokens: one kernel whose activations are bf16, against products that keep 16 bits. Twelve
// products in a row, each of activations that are off by 2^-9 at most: 2.3e-2 if all errors added up.
class DecodeBatch : public ::testing::TestWithParam<Shape> {};

TEST_P(DecodeBatch, IsNearOneKernelPerOperator) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* weights : {"bf16", "int8", "int4-g128"})
    for (const std::vector<int>& prompts :
         {std::vector<int>{9, 500, 31, 255, 1},
          {17, 16, 15, 600, 64, 2},
          {250, 17, 600, 3, 99, 128, 48, 777},
          {1, 300, 15, 16, 17, 700, 33, 2, 140},
          {64, 5, 511, 512, 513, 1, 90, 31, 32, 777, 20, 3},
          {129, 3, 256, 40, 600, 1, 17, 90, 15, 777, 64, 200, 2, 31, 450, 8}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << prompts.size() << " from " << prompts[0]);
      const std::vector<float> one = RunSteps(GetParam(), weights, prompts, 6, true);
      const std::vector<float> many = RunSteps(GetParam(), weights, prompts, 6, false);
      ASSERT_EQ(one.size(), many.size());
      EXPECT_LT(RowError(one, many), 2e-2);
      // More than eight tokens are faster in other kernels where its code is generic.
      const bool batch = BatchKernelFits() && (CodeOnGpu(0).hopper() || prompts.size() <= 8);
      if (batch && FitsGroups(GetParam(), *WeightOptions::Parse(weights))) {
        EXPECT_GT(RowError(one, many), 1e-5) << "the kernel did not run";
      }
      EXPECT_EQ(one, RunSteps(GetParam(), weights, prompts, 6, true)) << "differs from run to run";
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeBatch,
    ::testing::Values(Shape{512, 1408, 8, 8, 64, 0, false}, Shape{576, 1536, 9, 3, 64, 0, true},
                      Shape{1024, 2816, 8, 8, 128, 0, false}, Shape{1024, 2048, 16, 2, 128, 100, false},
                      Shape{640, 1000, 10, 5, 48, 0, false}, Shape{4608, 5000, 36, 6, 128, 0, false}));

TEST(DecodeBatchCompany, ASequenceDoesNotSeeItsCompany) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  const Shape shape{1024, 2816, 16, 4, 128, 0, false};
  for (const char* weights : {"bf16", "int8", "int4-g128"}) {
    const auto same = [&](const std::vector<int>& few, const std::vector<int>& many) {
      const std::vector<float> a = RunSteps(shape, weights, few, 4, true);
      const std::vector<float> b = RunSteps(shape, weights, many, 4, true);
      const size_t in_a = few.size() * 1000, in_b = many.size() * 1000;
      ASSERT_EQ(a.size(), 4 * in_a);
      ASSERT_EQ(b.size(), 4 * in_b);
      for (size_t step = 0; step < 4; ++step)
        for (size_t i = 0; i < in_a; ++i)
          ASSERT_EQ(a[step * in_a + i], b[step * in_b + i]) << weights << " step " << step << ", " << i;
    };
    same({300, 20, 40, 513, 7}, {300, 20, 40, 513, 7, 100, 90, 1});
    same({300, 20, 40, 513, 7, 100, 90, 1, 60},
         {300, 20, 40, 513, 7, 100, 90, 1, 60, 16, 333, 2, 50, 800, 31, 9});
  }
}

// Steps of several tokens of a sequence, as in speculative decoding: `counts[i]` tokens of sequence
// i at once, again and again. Logits of them all.
std::vector<float> RunSeveral(const Shape& shape, const char* weights, const std::vector<int>& prompts,
                              const std::vector<int>& counts, bool whole_step) {
  constexpr int64_t kBlocks = 64;
  CudaDecoderOptions options;
  options.weights = *WeightOptions::Parse(weights);
  options.context = kBlocks * 16;
  options.max_tokens = 1024;
  options.launch = whole_step ? StepLaunch::kFused : StepLaunch::kGraph;
  const auto sequences = static_cast<int64_t>(prompts.size());
  const auto decoder = MakeRandomDecoder(ConfigOf(shape), options, kBlocks * sequences);
  if (!decoder) return {};
  std::vector<int32_t> table;
  for (int64_t i = 0; i < sequences; ++i)
    for (int64_t b = 0; b < kBlocks; ++b) table.push_back(static_cast<int32_t>(b * sequences + i));
  std::vector<float> all;
  std::vector<int> at(prompts.size(), 0);
  const auto run = [&](const std::vector<int>& of) {
    std::vector<int32_t> tokens, positions, starts = {0}, rows;
    for (size_t i = 0; i < of.size(); ++i) {
      for (int j = 0; j < of[i]; ++j) {
        rows.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(static_cast<int32_t>((static_cast<size_t>(at[i]) * 37 + i * 11 + 5) % 1000));
        positions.push_back(at[i]++);
      }
      starts.push_back(static_cast<int32_t>(tokens.size()));
    }
    const bool few = tokens.size() <= 16;
    const auto status = decoder->Forward({.tokens = tokens,
                                          .positions = positions,
                                          .seq_start = starts,
                                          .block_table = table,
                                          .max_blocks = kBlocks,
                                          .logit_rows = few ? rows : std::vector<int32_t>()});
    ASSERT_TRUE(status) << status.error().message();
    if (!few) return;
    const auto logits = decoder->Logits();
    ASSERT_TRUE(logits) << logits.error().message();
    all.insert(all.end(), logits->begin(), logits->end());
  };
  run(prompts);
  for (int step = 0; step < 5; ++step) run(counts);
  return all;
}

TEST_P(DecodeBatch, TakesSeveralTokensOfASequence) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  struct Case {
    std::vector<int> prompts, counts;
  };
  for (const char* weights : {"bf16", "int8", "int4-g128"})
    for (const Case& c :
         {Case{{500}, {5}}, Case{{13}, {8}}, Case{{300, 30}, {2, 6}}, Case{{77, 9, 600}, {3, 1, 3}},
          Case{{250, 40, 600}, {5, 5, 5}}, Case{{300}, {16}}, Case{{90, 17, 31, 1, 500}, {1, 6, 1, 3, 1}}}) {
      SCOPED_TRACE(::testing::Message() << weights << ", " << c.counts[0] << " behind " << c.prompts[0]);
      const std::vector<float> one = RunSeveral(GetParam(), weights, c.prompts, c.counts, true);
      const std::vector<float> many = RunSeveral(GetParam(), weights, c.prompts, c.counts, false);
      ASSERT_EQ(one.size(), many.size());
      ASSERT_GT(one.size(), 0u);
      EXPECT_LT(RowError(one, many), 2e-2);
      EXPECT_EQ(one, RunSeveral(GetParam(), weights, c.prompts, c.counts, true)) << "differs from run to run";
    }
}

// The activations of three of its tokens fill the shared memory of the kernel for one to four.
TEST(DecodeBatchCompany, TakesFourOfAWideModel) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  if (!BatchKernelFits()) GTEST_SKIP() << "blocks have too little shared memory here";
  const Shape shape{512, 11008, 8, 8, 64, 0, false};
  const std::vector<int> prompts = {300, 20, 40, 513};
  const std::vector<float> one = RunCounts(shape, "bf16", prompts, {4, 3, 4}, true);
  const std::vector<float> many = RunCounts(shape, "bf16", prompts, {4, 3, 4}, false);
  ASSERT_EQ(one.size(), many.size());
  EXPECT_LT(RowError(one, many), 2e-2);
  EXPECT_GT(RowError(one, many), 1e-5) << "the kernel did not run";
}

TEST(DecodeBatchCompany, ComesAndGoes) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  const Shape shape{1024, 2816, 16, 4, 128, 0, false};
  const std::vector<int> prompts = {300, 20, 40, 513, 7, 100, 90, 1, 60, 16, 333, 2, 50, 800, 31, 9};
  for (const std::vector<size_t>& counts :
       {std::vector<size_t>{8, 8, 5, 6, 8, 4, 7, 7, 8}, {16, 9, 8, 12, 16, 16, 5, 9, 4, 16}}) {
    const std::vector<float> one = RunCounts(shape, "bf16", prompts, counts, true);
    const std::vector<float> many = RunCounts(shape, "bf16", prompts, counts, false);
    ASSERT_EQ(one.size(), many.size());
    EXPECT_LT(RowError(one, many), 2e-2);
  }
}

}  // namespace
}  // namespace celer
