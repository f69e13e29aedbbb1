// Tiny models in stages of ranks, as threads of this process: a pipeline computes, bit for bit, what its ranks do without
// stages, however a step is cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "celer/engine.h"
#include "engine/runners/group/micro_batches.h"
#include "engine/runners/group/stage_layers.h"
#include "engine/runners/make_runner.h"
#include "golden.h"
#include "layer_stages.h"
#include "models/load/model.h"

namespace celer::pipeline {  // other tests that it is compiled with have helpers of the same names
namespace {

using placed::AllModels, placed::Answers, placed::Outputs, placed::Prompt;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

EngineOptions OptionsFor(const fs::path& model, int64_t stages, int64_t shares = 1,
                         const char* weights = "stored") {
  EngineOptions options = {.model = model.string(),
                           .weights = *WeightOptions::Parse(weights),
                           .threads = static_cast<int>(stages * shares),
                           .context = 128,
                           .sequences = 4};
  options.parallel.tensor_parallel_size = shares;
  options.parallel.pipeline_parallel_size = stages;
  options.parallel.micro_batch = 1;
  return options;
}

double BytesOf(const std::vector<OperatorWork>& works) {
  double bytes = 0;
  for (const OperatorWork& work : works) bytes += work.bytes;
  return bytes;
}

TEST(Pipeline, StagesComputeWhatOneRankDoes) {
  std::vector<std::string> ran;
  for (const fs::path& model : AllModels()) {
    SCOPED_TRACE(model);
    auto one = MakeRunner(OptionsFor(model, 1));
    ASSERT_TRUE(one) << one.error().message();
    const int64_t layers = (*one)->info().config.layers;
    if (layers == 1) continue;
    if ((*one)->info().state_slots > 0) {
      EXPECT_FALSE(MakeRunner(OptionsFor(model, 2)));
      continue;
    }
    const std::vector<float> expected = Outputs(**one);
    for (const int64_t stages : {int64_t{2}, layers}) {
      auto several = MakeRunner(OptionsFor(model, stages));
      if (!several) {
        EXPECT_EQ(several.error().code(), Error::Code::kUnsupported) << several.error().message();
        EXPECT_THAT(several.error().message(), HasSubstr("`pipeline_parallel_size`"));
        break;
      }
      const Runner::Info &all = (*several)->info(), &alone = (*one)->info();
      EXPECT_EQ(all.config.layers, alone.config.layers);
      EXPECT_EQ(all.weight_bytes, alone.weight_bytes);
      EXPECT_EQ(all.kv_bytes_per_token, alone.kv_bytes_per_token);
      for (const auto& [format, bytes] :
           alone.bytes_by_format)  // an embedding that is the head is on both ends
        EXPECT_GE(all.bytes_by_format.at(format), bytes);
      EXPECT_EQ(all.threads, stages);
      const StepShape shape = {.sequences = 3, .tokens = 2, .position = 40};
      EXPECT_DOUBLE_EQ(BytesOf((*several)->Work(shape)), BytesOf((*one)->Work(shape)));
      const std::vector<float> got = Outputs(**several);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)));
      ran.push_back(model.filename());
    }
  }
  for (const char* name : {"llama3", "qwen3_moe", "mixtral", "gemma2", "gemma3", "deepseek_v2", "gpt_oss",
                           "opt", "gpt2", "cohere2", "qwen3-f32.gguf", "llama3-mixed.gguf"})
    EXPECT_THAT(ran, ::testing::Contains(name));
}

// Every layer is shared by as many ranks as without stages, so the sums are the same.
TEST(Pipeline, StagesOfRanksComputeWhatTheRanksDo) {
  const std::pair<const char*, int64_t> cases[] = {
      {"models/llama3", 2},    {"models/llama3", 4},      {"models/qwen3", 2}, {"models/qwen3_moe", 3},
      {"models/mixtral", 3},   {"models/gemma2", 3},      {"models/gpt2", 3},  {"models/opt", 3},
      {"models/tinyllama", 2}, {"gguf/qwen3-f32.gguf", 2}};
  for (const auto& [name, shares] : cases) {
    SCOPED_TRACE(std::string(name) + " on " + std::to_string(shares));
    auto ranks = MakeRunner(OptionsFor(kGolden / name, 1, shares)),
         stages = MakeRunner(OptionsFor(kGolden / name, 2, shares));
    ASSERT_TRUE(ranks) << ranks.error().message();
    ASSERT_TRUE(stages) << stages.error().message();
    EXPECT_EQ((*stages)->info().device, "cpu (" + std::to_string(2 * shares) + " ranks in 2 stages)");
    EXPECT_EQ((*stages)->info().weight_bytes, (*ranks)->info().weight_bytes);
    const std::vector<float> expected = Outputs(**ranks), got = Outputs(**stages);
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)));
  }
}

std::vector<int32_t> Greedy(EngineOptions options) {
  options.context = 0;
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  Request request;
  request.prompt = Prompt(1, (*engine)->info().vocab);  // the models have 256 positions
  request.max_tokens = 256;
  EXPECT_TRUE((*engine)->Submit(request));
  std::vector<int32_t> got;
  while ((*engine)->HasWork())
    for (const TokenEvent& event : (*engine)->Step()) {
      EXPECT_EQ(event.error, "");
      got.push_back(event.token);
    }
  return got;
}

TEST(Pipeline, GreedyTokensAreThoseOfOneRank) {
  struct Case {
    const char* model;
    int64_t stages, shares;
    const char* weights;
  };
  const Case cases[] = {{"models/llama3", 2, 1, "stored"},
                        {"models/llama3", 2, 2, "stored"},
                        {"models/llama3", 2, 1, "f16"},
                        {"models/llama3", 2, 1, "int8"},
                        {"models/llama3", 2, 1, "int4"},
                        {"models/qwen3", 2, 2, "stored"},
                        {"models/qwen3_moe", 2, 3, "stored"},
                        {"models/deepseek_v2", 2, 1, "stored"},
                        {"models/gemma2", 2, 1, "bf16"},
                        {"models/gpt2", 2, 3, "stored"},
                        {"gguf/llama3-mixed.gguf", 2, 1, "stored"},
                        {"gguf/qwen3-f32.gguf", 2, 2, "stored"}};
  for (const auto& [name, stages, shares, weights] : cases) {
    SCOPED_TRACE(std::string(name) + " " + weights + ", " + std::to_string(stages) + " x " +
                 std::to_string(shares));
    // Sums over ranks are in another order, and near ties fall either way where activations are rounded.
    const auto one = Greedy(OptionsFor(kGolden / name, 1, Exact() ? 1 : shares, weights));
    EXPECT_GT(one.size(), 100u);
    EXPECT_EQ(Greedy(OptionsFor(kGolden / name, stages, shares, weights)), one);
  }
}

// The scheduler does not know: greedy and sampled answers, more sequences than there are blocks for (preempted: swapped
// and recomputed), and drafts; with steps cut into single tokens, and not at all.
TEST(Pipeline, AnswersAreThoseOfOneRank) {
  SamplingParams sampled;
  sampled.temperature = 0.9f;
  sampled.top_p = 0.9f;
  sampled.seed = 11;
  const auto small = [](EngineOptions* options) {
    options->kv_memory.bytes = 1 << 16;
    options->kv_host_memory = 1 << 18;
  };
  const auto drafts = [](EngineOptions* options) {
    options->speculation = {.kind = Speculation::Kind::kLookup, .depth = 4, .always = true};
  };
  const auto whole = [](EngineOptions* options) { options->parallel.micro_batch = 1000; };
  const auto check = [&](auto change) {
    for (const SamplingParams& sampling : {SamplingParams(), sampled}) {
      const auto with = [&](int64_t stages) {
        EngineOptions options = OptionsFor(kGoldenModel, stages);
        change(&options);
        return Answers(options, sampling, 6);
      };
      const auto expected = with(1);
      EXPECT_EQ(expected.size(), 6u * 60);
      EXPECT_EQ(with(2), expected);
    }
  };
  check([](EngineOptions*) {});
  check(small);
  check(drafts);
  check(whole);
}

TEST(Pipeline, WhatCannotBeIsOneSentence) {
  const auto refused = [](const char* model, int64_t stages, int64_t shares, auto change) {
    EngineOptions options = OptionsFor(kGolden / "models" / model, stages, shares);
    change(&options);
    const auto runner = MakeRunner(options);
    EXPECT_FALSE(runner) << model;
    return runner ? std::string() : runner.error().message();
  };
  const auto plain = [](EngineOptions*) {};
  EXPECT_THAT(refused("bamba", 2, 1, plain), HasSubstr("recurrent layers"));
  EXPECT_THAT(refused("gemma3n", 2, 1, plain), HasSubstr("`pipeline_parallel_size` 2"));
  EXPECT_THAT(refused("llama3", 9, 1, plain), HasSubstr("`pipeline_parallel_size` 9: the model has"));
  EXPECT_THAT(refused("llama3", 2, 3, plain), HasSubstr("sizes that work: 1, 2, 4"));
  EXPECT_THAT(refused("deepseek_v2", 2, 2, plain), HasSubstr("latent attention"));
  EXPECT_THAT(refused("llama3", 16, 8, plain), HasSubstr("are 128 ranks; at most 64"));
  EXPECT_THAT(refused("llama3", 2, 1,
                      [](EngineOptions* o) {
                        o->placement.split = {1, 1, 1};
                      }),
              HasSubstr("`split` has 3 parts"));
  EXPECT_THAT(refused("llama3", 2, 1, [](EngineOptions* o) { o->placement.gpu_layers = 1; }),
              HasSubstr("`pipeline_parallel_size` 2 says where layers are"));
  EXPECT_THAT(refused("llama3", 2, 1, [](EngineOptions* o) { o->speculation = *Speculation::Parse("mtp"); }),
              HasSubstr("mtp"));
}

TEST(StageLayers, AreEvenByWhatATokenMultiplies) {
  auto config = LoadDecoderConfig(kGoldenModel);
  ASSERT_TRUE(config);
  config->layers = 12;
  const auto counts = [&](int stages, const std::vector<double>& split = {}) {
    std::vector<int64_t> out;
    const auto ranges = StageLayers(*config, stages, split);
    EXPECT_TRUE(ranges);
    int64_t next = 0;
    for (const LayerRange& range : *ranges) {
      EXPECT_EQ(range.first, std::exchange(next, range.end()));
      out.push_back(range.count);
    }
    EXPECT_EQ(next, config->layers);
    return out;
  };
  config->vocab = 1;  // a head that costs nothing
  EXPECT_EQ(counts(2), (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(counts(3), (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(counts(12), std::vector<int64_t>(12, 1));
  EXPECT_EQ(counts(2, {3, 1}), (std::vector<int64_t>{9, 3}));
  const LlmParams params = CountParams(ToLlmShape(*config, ""));
  config->vocab = 2 * params.layers_active / 12 / config->hidden;  // as much as two layers
  EXPECT_EQ(counts(2), (std::vector<int64_t>{7, 5}));
}

TEST(MicroBatches, AreCutWhereThatGains) {
  EXPECT_TRUE(MicroBatchCuts(1, 2, 1).empty());
  EXPECT_TRUE(MicroBatchCuts(100, 2, 100).empty());  // it would read the weights again
  EXPECT_EQ(MicroBatchCuts(200, 2, 100), (std::vector<int32_t>{100}));
  EXPECT_EQ(MicroBatchCuts(512, 2, 128), (std::vector<int32_t>{128, 256, 384}));
  EXPECT_EQ(MicroBatchCuts(100'000, 2, 1).size(), 7u);  // bounded
  for (const int64_t tokens : {1, 7, 300, 5000})
    for (const int stages : {2, 3, 8}) {
      int32_t before = 0;
      for (const int32_t cut : MicroBatchCuts(tokens, stages, 64)) {
        EXPECT_LT(std::exchange(before, cut), cut);
        EXPECT_LT(cut, tokens);
      }
    }
}

}  // namespace
}  // namespace celer::pipeline
