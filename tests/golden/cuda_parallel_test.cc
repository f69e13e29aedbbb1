// Tiny models on several ranks that share one GPU: they compute what one rank does. The kernels are those of several GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/device.h"
#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::WorstRelative;
namespace fs = std::filesystem;

// What `celer` itself sets where ranks share a GPU; the CPU's sums as the references have them.
[[maybe_unused]] const int kShare = setenv("CELER_RANKS_SHARE_GPU", "1", 1);
[[maybe_unused]] const int kEager = setenv("CUDA_MODULE_LOADING", "EAGER", 1);
[[maybe_unused]] const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
[[maybe_unused]] const int kExact = setenv("CELER_FORCE", "matmul:portable,attention:portable", 1);

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

EngineOptions OptionsFor(const std::string& model, const char* device, int64_t ranks,
                         const char* weights = "stored") {
  EngineOptions options = {.model = model,
                           .weights = *WeightOptions::Parse(weights),
                           .device = *DeviceOptions::Parse(device),
                           .context = 256,
                           .chunk = 8,  // more tokens at once are rounded to bf16 on one rank
                           .sequences = 4};
  options.kv_memory.bytes = int64_t{64} << 20;
  options.parallel.tensor_parallel_size = ranks;
  options.parallel.watchdog_seconds = 20;
  return options;
}

std::vector<int32_t> Prompt(int64_t tokens, int64_t vocab) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < tokens; ++i) out.push_back(static_cast<int32_t>((i * i * 7 + 3 * i + 1) % vocab));
  return out;
}

// Of several sequences with prompts of different lengths, one after the other.
std::vector<std::vector<int32_t>> Generate(const EngineOptions& options, int64_t sequences, int64_t count,
                                           float temperature = 0) {
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(sequences));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < sequences; ++i) {
    Request request;
    request.prompt = Prompt(3 + 5 * i, (*engine)->info().vocab);
    request.max_tokens = count;
    request.sampling.temperature = temperature;
    request.sampling.seed = static_cast<uint64_t>(i);
    const auto id = (*engine)->Submit(request);
    EXPECT_TRUE(id);
    ids.push_back(id ? *id : -1);
  }
  while ((*engine)->HasWork()) {
    for (const TokenEvent& event : (*engine)->Step())
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == event.request) out[i].push_back(event.token);
    if ((*engine)->fault()) {
      ADD_FAILURE() << (*engine)->fault()->message();
      break;
    }
  }
  return out;
}

// The logits of a prompt in pieces of so many tokens, and of one token after it.
Result<std::vector<float>> Logits(Runner& runner, size_t piece) {
  constexpr size_t kPrompt = 39;
  const std::vector<int32_t> tokens = Prompt(kPrompt + 1, runner.info().config.vocab), table = {2, 0, 1};
  std::vector<float> all;
  for (size_t begin = 0; begin < tokens.size();) {
    const size_t count = begin < kPrompt ? std::min(piece, kPrompt - begin) : 1;
    const Slice slice{.tokens = std::span(tokens).subspan(begin, count),
                      .position = static_cast<int64_t>(begin),
                      .block_table = table,
                      .rows = Slice::Rows::kAll,
                      .prompt_length = kPrompt};
    CELER_ASSIGN(const std::vector<float> logits, RunLogits(runner, {&slice, 1}));
    all.insert(all.end(), logits.begin(), logits.end());
    begin += count;
  }
  return all;
}

// As in CudaGolden for one rank: up to 8 tokens are exact but for keys and values, which round to f16 at other places; the
// attention of more has queries of 16 bits, and experts are multiplied as bf16.
struct Piece {
  size_t tokens;
  double tolerance;
};
constexpr Piece kPieces[] = {{7, 1e-2}, {32, 0.1}};

const std::tuple<const char*, int64_t> kModels[] = {{"models/llama3", 2},
                                                    {"models/llama3", 4},
                                                    {"models/tinyllama", 4},
                                                    {"models/qwen2", 2},
                                                    {"models/qwen2", 4},
                                                    {"models/qwen3", 2},
                                                    {"models/mistral", 3},
                                                    {"models/qwen3_moe", 3},
                                                    {"models/mixtral", 3},
                                                    {"models/gemma2", 3},
                                                    {"models/gemma3", 3},
                                                    {"models/phi2", 2},
                                                    {"models/gpt2", 3},
                                                    {"models/opt", 3},
                                                    {"models/starcoder2", 3},
                                                    {"models/qwen2_moe", 3},
                                                    {"models/llama_bias", 3},
                                                    {"gguf/qwen3-f32.gguf", 2},
                                                    {"gguf/qwen3_moe-bf16.gguf", 3}};

TEST(CudaParallel, LogitsAreThoseOfTheCpu) {
  NEEDS_GPU();
  for (const auto& [name, ranks] : kModels) {
    SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
    const std::string path = (kGolden / name).string();
    auto cpu = MakeRunner(OptionsFor(path, "cpu", 1)), gpu = MakeRunner(OptionsFor(path, "cuda", ranks));
    ASSERT_TRUE(cpu) << cpu.error().message();
    ASSERT_TRUE(gpu) << gpu.error().message();
    EXPECT_EQ((*gpu)->info().config.vocab, (*cpu)->info().config.vocab);
    EXPECT_NE((*gpu)->info().device.find(std::to_string(ranks) + " ranks"), std::string::npos)
        << (*gpu)->info().device;
    for (const auto& [tokens, tolerance] : kPieces) {
      const auto expected = Logits(**cpu, tokens), got = Logits(**gpu, tokens);
      ASSERT_TRUE(expected) << expected.error().message();
      ASSERT_TRUE(got) << got.error().message();
      ASSERT_EQ(got->size(), expected->size());
      EXPECT_LE(WorstRelative(*got, *expected), tolerance) << "pieces of " << tokens;
      // From run to run the same bits.
      const auto again = Logits(**gpu, tokens);
      ASSERT_TRUE(again) << again.error().message();
      EXPECT_EQ(0, std::memcmp(again->data(), got->data(), got->size() * sizeof(float)));
    }
  }
}

TEST(CudaParallel, GreedyTokensAreThoseOfOneRank) {
  NEEDS_GPU();
  for (const auto& [name, ranks] : kModels) {
    SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
    const std::string path = (kGolden / name).string();
    const auto one = Generate(OptionsFor(path, "cuda", 1), 1, 64),
               several = Generate(OptionsFor(path, "cuda", ranks), 1, 64);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0].size(), 64u);
    EXPECT_EQ(several, one);
  }
}

TEST(CudaParallel, EveryFormat) {
  NEEDS_GPU();
  const std::string path = (kGolden / "models/llama3").string();
  for (const char* weights : {"bf16", "f16", "int8"})
    for (const int64_t ranks : {2, 4}) {
      SCOPED_TRACE(std::string(weights) + " on " + std::to_string(ranks));
      auto cpu = MakeRunner(OptionsFor(path, "cpu", 1, weights)),
           gpu = MakeRunner(OptionsFor(path, "cuda", ranks, weights));
      ASSERT_TRUE(cpu) << cpu.error().message();
      ASSERT_TRUE(gpu) << gpu.error().message();
      const auto expected = Logits(**cpu, 7), got = Logits(**gpu, 7);
      ASSERT_TRUE(expected && got);
      // int8 has a scale to a row, and a finer one to a part of it.
      EXPECT_LE(WorstRelative(*got, *expected), std::string_view(weights) == "int8" ? 0.1 : 1e-2);
    }
}

// Several sequences that come and go: steps that are captured and queued ahead, prompts between them.
TEST(CudaParallel, BatchesAndSampling) {
  NEEDS_GPU();
  const std::string path = (kGolden / "models/llama3").string();
  for (const int64_t ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(Generate(OptionsFor(path, "cuda", ranks), 6, 100),
              Generate(OptionsFor(path, "cpu", 1), 6, 100));
    // What is sampled depends on the last bits: those are the same in each run of as many ranks.
    const auto sampled = Generate(OptionsFor(path, "cuda", ranks), 6, 100, 0.8f);
    ASSERT_EQ(sampled.size(), 6u);
    EXPECT_NE(sampled[0], sampled[1]);
    EXPECT_EQ(Generate(OptionsFor(path, "cuda", ranks), 6, 100, 0.8f), sampled);
  }
}

// A shape of usual size, with weights made on the GPU: one step of four sequences after the other.
TEST(CudaParallel, LargeShapesRun) {
  NEEDS_GPU();
  for (const int64_t ranks : {2, 4, 8}) {
    SCOPED_TRACE(ranks);
    const auto tokens = Generate(OptionsFor("random:llama-3.2-1b", "cuda", ranks, "bf16"), 4, 64);
    ASSERT_EQ(tokens.size(), 4u);
    for (const auto& each : tokens) EXPECT_EQ(each.size(), 64u);
    EXPECT_EQ(Generate(OptionsFor("random:llama-3.2-1b", "cuda", ranks, "bf16"), 4, 64), tokens);
  }
}

// Blocks that are copied, cleared and swapped are so on every rank.
TEST(CudaParallel, BlocksMoveOnEveryRank) {
  NEEDS_GPU();
  auto runner = MakeRunner(OptionsFor(kGoldenModel, "cuda", 2), /*kv_host_blocks=*/4);
  ASSERT_TRUE(runner) << runner.error().message();
  const std::vector<int32_t> tokens = Prompt(33, (*runner)->info().config.vocab);
  const auto last = [&](std::vector<int32_t> table, size_t begin, size_t count) {
    const Slice slice{.tokens = std::span(tokens).subspan(begin, count),
                      .position = static_cast<int64_t>(begin),
                      .block_table = table,
                      .rows = Slice::Rows::kLast};
    auto logits = RunLogits(**runner, {&slice, 1});
    EXPECT_TRUE(logits);
    return logits ? *logits : std::vector<float>();
  };
  last({0, 1, 2}, 0, 32);
  const auto expected = last({0, 1, 2}, 32, 1);
  const BlockCopy out[] = {{0, 0}, {1, 1}}, in[] = {{0, 4}, {1, 5}}, copy[] = {{4, 6}, {5, 7}};
  ASSERT_TRUE((*runner)->SwapOut(out));
  const int32_t gone[] = {0, 1, 2, 4, 5, 6, 7};
  ASSERT_TRUE((*runner)->ClearBlocks(gone));
  ASSERT_TRUE((*runner)->SwapIn(in));
  ASSERT_TRUE((*runner)->CopyBlocks(copy));
  EXPECT_EQ(last({6, 7, 8}, 32, 1), expected);
}

TEST(CudaParallel, WhatDoesNotRunIsNamed) {
  NEEDS_GPU();
  const auto refused = [](EngineOptions options) {
    auto runner = MakeRunner(options);
    EXPECT_FALSE(runner);
    return runner ? std::string() : runner.error().message();
  };
  EXPECT_NE(refused(OptionsFor(kGoldenModel, "cuda", 3)).find("sizes that work: 1, 2, 4"), std::string::npos);
  EXPECT_NE(refused(OptionsFor(kGoldenModel, "cuda", 9)).find("1 to 8"), std::string::npos);
  EngineOptions processes = OptionsFor(kGoldenModel, "cuda", 2);
  processes.parallel.rank = 0;
  EXPECT_NE(refused(processes).find("threads of one process"), std::string::npos);
  EngineOptions codes = OptionsFor(kGoldenModel, "cuda", 2);
  codes.activations = Activations::kInt8;
  EXPECT_NE(refused(codes).find("`activations` int8"), std::string::npos);
}

}  // namespace
}  // namespace celer
