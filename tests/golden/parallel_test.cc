// Tiny models on several ranks, as threads of this process: they compute what one rank does, and what cannot be split
// says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"
#include "io/json/json.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::WorstRelative;
namespace fs = std::filesystem;

// Sums in another order; integer activations are rounded for each rank's columns apart (golden_test.cc on 0.1).
double Tolerance() {
  return Exact() ? 1e-4 : 0.1;
}

EngineOptions OptionsFor(const fs::path& model, int64_t ranks, const char* weights = "stored") {
  EngineOptions options = {.model = model.string(),
                           .weights = *WeightOptions::Parse(weights),
                           .kv = KvType::kF32,
                           .threads = static_cast<int>(ranks),
                           .sequences = 2};
  options.parallel.tensor_parallel_size = ranks;
  return options;
}

std::vector<fs::path> AllModels() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) all.push_back(entry.path());
  for (const auto& entry : fs::directory_iterator(kGolden / "quantized"))
    if (!entry.path().filename().string().starts_with("mxfp4"))
      all.push_back(entry.path());  // not a whole model
  for (const char* folder : {"gguf", "llama2c"})
    for (const auto& entry : fs::directory_iterator(kGolden / folder))
      if (entry.path().extension() == ".gguf" || entry.path().extension() == ".bin")
        all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int32_t> Prompt(int64_t tokens, int64_t vocab) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < tokens; ++i) out.push_back(static_cast<int32_t>((i * i * 7 + 3 * i + 1) % vocab));
  return out;
}

// The logits of a prompt in two pieces, and of one token after it.
Result<std::vector<float>> Logits(Runner& runner) {
  const std::vector<int32_t> tokens = Prompt(40, runner.info().config.vocab), table = {2, 0, 1};
  std::vector<float> all;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 23}, {23, 16}, {39, 1}}) {
    const Slice slice{.tokens = std::span(tokens).subspan(begin, count),
                      .position = static_cast<int64_t>(begin),
                      .block_table = table,
                      .rows = Slice::Rows::kAll,
                      .prompt_length = 39};
    CELER_ASSIGN(const std::vector<float> logits, RunLogits(runner, {&slice, 1}));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<int32_t> Greedy(const EngineOptions& options, int64_t count) {
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  Request request;
  request.prompt = Prompt(1, (*engine)->info().vocab);  // the models have 256 positions
  request.max_tokens = count;
  EXPECT_TRUE((*engine)->Submit(request));
  std::vector<int32_t> got;
  while ((*engine)->HasWork())
    for (const TokenEvent& event : (*engine)->Step()) {
      EXPECT_EQ(event.error, "");
      got.push_back(event.token);
    }
  return got;
}

TEST(Parallel, LogitsAreThoseOfOneRank) {
  std::map<std::string, std::set<int64_t>> ran;
  for (const fs::path& model : AllModels()) {
    SCOPED_TRACE(model);
    auto one = MakeRunner(OptionsFor(model, 1));
    ASSERT_TRUE(one) << one.error().message();
    if ((*one)->info().state_slots > 0) continue;  // recurrent layers: see below
    const auto expected = Logits(**one);
    ASSERT_TRUE(expected) << expected.error().message();
    for (const int64_t ranks : {2, 3, 4}) {
      SCOPED_TRACE(ranks);
      auto several = MakeRunner(OptionsFor(model, ranks));
      if (!several) {
        const Error& error = several.error();
        EXPECT_NE(error.message().find("`tensor_parallel_size`"), std::string::npos) << error.message();
        const bool sizes = error.message().find("sizes that work: 1") != std::string::npos;
        EXPECT_EQ(sizes, error.code() == Error::Code::kInvalid) << error.message();
        continue;
      }
      ran[model.filename()].insert(ranks);
      const Runner::Info &all = (*several)->info(), &alone = (*one)->info();
      EXPECT_EQ(all.config.heads, alone.config.heads);
      EXPECT_EQ(all.config.vocab, alone.config.vocab);
      EXPECT_GE(all.kv_bytes_per_token, alone.kv_bytes_per_token);
      EXPECT_EQ(all.threads, ranks);
      const auto got = Logits(**several);
      ASSERT_TRUE(got) << got.error().message();
      ASSERT_EQ(got->size(), expected->size());
      EXPECT_TRUE(testing::AllFinite(*got));
      EXPECT_LE(WorstRelative(*got, *expected), Tolerance());
      // From run to run the same bits.
      const auto again = Logits(**several);
      ASSERT_TRUE(again) << again.error().message();
      EXPECT_EQ(0, std::memcmp(again->data(), got->data(), got->size() * sizeof(float)));
    }
  }
  // Families that must not be lost, and at which sizes.
  const std::pair<const char*, std::set<int64_t>> wanted[] = {
      {"llama3", {2, 4}}, {"llama2", {2, 4}}, {"tinyllama", {2, 4}}, {"mistral", {3}},    {"qwen2", {2, 4}},
      {"qwen3", {2, 4}},  {"qwen3_moe", {3}}, {"mixtral", {3}},      {"qwen2_moe", {3}},  {"gemma2", {3}},
      {"phi2", {2, 4}},   {"gpt2", {3}},      {"opt", {3}},          {"starcoder2", {3}}, {"gptj", {3}},
      {"phi3", {3}},      {"gemma3", {3}},    {"llama_bias", {3}}};
  for (const auto& [name, sizes] : wanted)
    for (const int64_t ranks : sizes) EXPECT_TRUE(ran[name].contains(ranks)) << name << " on " << ranks;
}

TEST(Parallel, GreedyTokensAreThoseOfOneRank) {
  if (!Exact()) GTEST_SKIP() << "near ties fall either way where activations are rounded";
  const std::tuple<const char*, int64_t, const char*> cases[] = {{"models/llama3", 2, "stored"},
                                                                 {"models/llama3", 4, "stored"},
                                                                 {"models/llama3", 2, "bf16"},
                                                                 {"models/llama3", 2, "f16"},
                                                                 {"models/tinyllama", 4, "stored"},
                                                                 {"models/qwen3", 2, "stored"},
                                                                 {"models/qwen2", 4, "stored"},
                                                                 {"models/qwen3_moe", 3, "stored"},
                                                                 {"models/mixtral", 3, "stored"},
                                                                 {"models/gemma2", 3, "stored"},
                                                                 {"models/gpt2", 3, "stored"},
                                                                 {"gguf/qwen3-f32.gguf", 2, "stored"},
                                                                 {"gguf/qwen3_moe-bf16.gguf", 3, "stored"}};
  constexpr int64_t kTokens = 256;
  for (const auto& [name, ranks, weights] : cases) {
    SCOPED_TRACE(std::string(name) + " " + weights + " on " + std::to_string(ranks));
    const auto one = Greedy(OptionsFor(kGolden / name, 1, weights), kTokens);
    EXPECT_EQ(std::ssize(one), kTokens);
    EXPECT_EQ(Greedy(OptionsFor(kGolden / name, ranks, weights), kTokens), one);
  }
}

// Quantized while loading: groups are those of the whole matrix, or the size is refused.
TEST(Parallel, FormatsOfWhileLoading) {
  const fs::path model = kGolden / "models/llama3";
  for (const char* weights : {"f32", "f16", "bf16", "int8", "int4"}) {
    SCOPED_TRACE(weights);
    auto one = MakeRunner(OptionsFor(model, 1, weights)), two = MakeRunner(OptionsFor(model, 2, weights));
    ASSERT_TRUE(one) << one.error().message();
    if (!two) {
      EXPECT_NE(two.error().message().find("sizes that work: 1"), std::string::npos) << two.error().message();
      EXPECT_EQ(std::string_view(weights), "int4");
      continue;
    }
    const auto expected = Logits(**one), got = Logits(**two);
    ASSERT_TRUE(expected && got);
    // int8 has a scale to a row, and a finer one to a part of it.
    const bool rounded = std::string_view(weights) == "int8";
    EXPECT_LE(WorstRelative(*got, *expected), rounded ? 0.1 : Tolerance());
  }
}

TEST(Parallel, SizesThatDoNotWorkAreNamed) {
  const auto refused = [](const char* model, int64_t ranks) {
    auto runner = MakeRunner(OptionsFor(kGolden / "models" / model, ranks));
    EXPECT_FALSE(runner) << model;
    return runner ? std::string() : runner.error().message();
  };
  EXPECT_NE(refused("llama3", 3).find("4 attention heads do not divide; sizes that work: 1, 2, 4"),
            std::string::npos)
      << refused("llama3", 3);
  EXPECT_NE(refused("qwen3_moe", 4).find("6 attention heads do not divide; sizes that work: 1, 3, 6"),
            std::string::npos);
  EXPECT_NE(refused("llama3", 65).find("expected 1 to 64"), std::string::npos);
  EXPECT_NE(refused("deepseek_v2", 3).find("latent attention"), std::string::npos);
  EXPECT_NE(refused("bamba", 3).find("recurrent layers"), std::string::npos);
  EXPECT_NE(refused("gemma4", 2).find("layers of several shapes"), std::string::npos);
}

// Blocks that are copied, cleared and swapped are so on every rank.
TEST(Parallel, BlocksMoveOnEveryRank) {
  EngineOptions options = OptionsFor(kGoldenModel, 2);
  auto runner = MakeRunner(options, /*kv_host_blocks=*/4);
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
  const auto expected = last({0, 1, 2}, 0, 33);
  const BlockCopy out[] = {{0, 0}, {1, 1}}, in[] = {{0, 4}, {1, 5}}, copy[] = {{4, 6}, {5, 7}};
  ASSERT_TRUE((*runner)->SwapOut(out));
  const int32_t gone[] = {0, 1, 2, 4, 5, 6, 7};
  ASSERT_TRUE((*runner)->ClearBlocks(gone));
  ASSERT_TRUE((*runner)->SwapIn(in));
  ASSERT_TRUE((*runner)->CopyBlocks(copy));
  EXPECT_EQ(last({6, 7, 8}, 32, 1), expected);
  ASSERT_TRUE((*runner)->DiscardKv());
  EXPECT_EQ(last({6, 7, 8}, 0, 33), expected);
}

// Each rank has its part of the weights and no more than a little besides.
TEST(Parallel, WeightsAreSplit) {
  auto one = MakeRunner(OptionsFor(kGoldenModel, 1)), four = MakeRunner(OptionsFor(kGoldenModel, 4));
  ASSERT_TRUE(one) << one.error().message();
  ASSERT_TRUE(four) << four.error().message();
  EXPECT_EQ((*four)->info().device, "cpu (4 ranks)");
  // KV heads are on two ranks each.
  EXPECT_EQ((*four)->info().kv_bytes_per_token, 2 * (*one)->info().kv_bytes_per_token);
  const auto alone = static_cast<double>((*one)->info().weight_bytes),
             all = static_cast<double>((*four)->info().weight_bytes);
  EXPECT_GE(all, alone);
  EXPECT_LE(all, 1.25 * alone);  // k and v twice
}

}  // namespace
}  // namespace celer
