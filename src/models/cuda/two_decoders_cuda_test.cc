// Two decoders on one GPU that queue their steps at the same time: kernels whose blocks wait for each other
// must not get in each other's way.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "base/device.h"
#include "models/cuda/decoder_test_util.h"

namespace celer {
namespace {

constexpr int kVocab = 1000, kSteps = 400, kPrompt = 40;

// The logits behind a prompt and many steps that nobody waits for, with the last 32 of that many blocks.
std::vector<float> Generate(const char* weights, int blocks = 32) {
  CudaDecoderOptions options;
  options.weights = *WeightOptions::Parse(weights);
  options.context = 512;
  options.max_tokens = 64;
  const auto decoder = MakeRandomDecoder(FromLlmShape({{.layers = 4,
                                                        .hidden = 1024,
                                                        .intermediate = 2816,
                                                        .vocab = kVocab,
                                                        .heads = 16,
                                                        .kv_heads = 8,
                                                        .head_dim = 64},
                                                       {},
                                                       "test"}),
                                         options, blocks);
  if (!decoder) return {};
  EXPECT_TRUE(decoder->decodes_in_one_kernel());
  std::vector<int32_t> table(32), tokens(kPrompt), positions(kPrompt);
  std::iota(table.begin(), table.end(), blocks - 32);
  std::iota(tokens.begin(), tokens.end(), 3);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int32_t> starts = {0, kPrompt};
  const auto run = decoder->Forward({.tokens = tokens,
                                     .positions = positions,
                                     .seq_start = starts,
                                     .block_table = table,
                                     .max_blocks = 32,
                                     .logit_rows = {}});
  EXPECT_TRUE(run) << run.error().message();
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int32_t> first = {7}, position = {kPrompt + step}, one = {0, 1};
    const auto queued = decoder->Decode({.tokens = step == 0 ? std::span(first) : std::span<const int32_t>(),
                                         .positions = position,
                                         .seq_start = one,
                                         .block_table = table,
                                         .max_blocks = 32,
                                         .logit_rows = {}});
    EXPECT_TRUE(queued) << queued.error().message();
  }
  auto logits = decoder->Logits();
  if (!logits) {
    ADD_FAILURE() << logits.error().message();
    return {};
  }
  return std::vector<float>(logits->begin(), logits->end());
}

TEST(TwoCudaDecoders, RunAtOnce) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<float> bf16 = Generate("bf16"), int4 = Generate("int4-g128");
  ASSERT_EQ(bf16.size(), size_t{kVocab});
  for (int round = 0; round < 4; ++round) {
    std::vector<float> beside, other;
    std::thread thread([&] { other = Generate("int4-g128", 32 + 100 * round); });
    beside = Generate("bf16");
    thread.join();
    EXPECT_EQ(beside, bf16);
    EXPECT_EQ(other, int4);
  }
}

}  // namespace
}  // namespace celer
