// Layers on several devices: a pipeline of stages computes, bit for bit, what one runner does. Here all stages are on the
// CPU; cuda_placed_test.cc has those on GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"
#include "layer_stages.h"

namespace celer::placed {  // other tests that it is compiled with have helpers of the same names
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

EngineOptions OptionsFor(const fs::path& model, std::vector<double> split) {
  EngineOptions options = {.model = model.string(), .threads = 1, .context = 128, .sequences = 4};
  if (split.size() > 1)
    options.placement = {.devices = std::vector<DeviceOptions>(split.size()), .split = std::move(split)};
  return options;
}

TEST(Placed, StagesComputeWhatOneRunnerDoes) {
  std::vector<std::string> ran;
  for (const fs::path& model : AllModels()) {
    SCOPED_TRACE(model);
    auto one = MakeRunner(OptionsFor(model, {}));
    ASSERT_TRUE(one) << one.error().message();
    const int64_t layers = (*one)->info().config.layers;
    if (layers == 1) continue;
    if ((*one)->info().state_slots > 0) {
      EXPECT_FALSE(MakeRunner(OptionsFor(model, {1, 1})));
      continue;
    }
    const std::vector<float> expected = Outputs(**one);
    std::vector<std::vector<double>> splits = {{1, 1}, {1, static_cast<double>(layers - 1)}};
    if (layers > 2) splits.push_back(std::vector<double>(static_cast<size_t>(layers), 1.0));
    for (const std::vector<double>& split : splits) {
      auto several = MakeRunner(OptionsFor(model, split));
      if (!several) {
        EXPECT_EQ(several.error().code(), Error::Code::kUnsupported) << several.error().message();
        EXPECT_THAT(several.error().message(), HasSubstr("on several devices"));
        break;
      }
      const Runner::Info &all = (*several)->info(), &alone = (*one)->info();
      EXPECT_EQ(all.config.layers, alone.config.layers);
      EXPECT_EQ(all.weight_bytes, alone.weight_bytes);
      EXPECT_EQ(all.kv_bytes_per_token, alone.kv_bytes_per_token);
      const OperatorWork works[] = {(*several)->Work({})[0], (*one)->Work({})[0]};
      EXPECT_EQ(works[0].bytes, works[1].bytes);
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

// The scheduler does not know: greedy and sampled answers, more sequences than there are blocks for (preempted: swapped
// and recomputed), and drafts.
TEST(Placed, AnswersAreThoseOfOneRunner) {
  SamplingParams sampled;
  sampled.temperature = 0.9f;
  sampled.top_p = 0.9f;
  sampled.seed = 11;
  const auto with = [](std::vector<double> split, auto change) {
    EngineOptions options = OptionsFor(kGoldenModel, std::move(split));
    change(&options);
    return options;
  };
  const auto small = [](EngineOptions* options) {
    options->kv_memory.bytes = 1 << 16;
    options->kv_host_memory = 1 << 18;
  };
  const auto drafts = [](EngineOptions* options) {
    options->speculation = {.kind = Speculation::Kind::kLookup, .depth = 4, .always = true};
  };
  const auto plain = [](EngineOptions*) {};
  const auto check = [&](auto change) {
    for (const SamplingParams& sampling : {SamplingParams(), sampled}) {
      const auto expected = Answers(with({}, change), sampling, 6);
      EXPECT_EQ(expected.size(), 6u * 60);
      EXPECT_EQ(Answers(with({1, 1}, change), sampling, 6), expected);
    }
  };
  check(plain);
  check(small);
  check(drafts);
}

TEST(Placed, WhatCannotBeIsOneSentence) {
  const auto refused = [](const char* model, auto change) {
    EngineOptions options = OptionsFor(kGolden / "models" / model, {1, 1});
    change(&options);
    const auto runner = MakeRunner(options);
    EXPECT_FALSE(runner) << model;
    return runner ? std::string() : runner.error().message();
  };
  const auto plain = [](EngineOptions*) {};
  EXPECT_THAT(refused("bamba", plain), HasSubstr("recurrent layers"));
  EXPECT_THAT(refused("gemma3n", plain), HasSubstr("use one `device`"));
  EXPECT_THAT(refused("llama3",
                      [](EngineOptions* o) {
                        o->placement.split = {1, 1, 1};
                      }),
              HasSubstr("`split` has 3 parts, and `device` names 2 devices"));
  EXPECT_THAT(refused("llama3",
                      [](EngineOptions* o) {
                        o->placement = {.devices = std::vector<DeviceOptions>(9), .split = {}};
                      }),
              HasSubstr("names 9 devices"));
  EXPECT_THAT(refused("llama3", [](EngineOptions* o) { o->placement.gpu_layers = 1; }),
              HasSubstr("`gpu_layers`"));
  EXPECT_THAT(refused("llama3", [](EngineOptions* o) { o->speculation = *Speculation::Parse("mtp"); }),
              HasSubstr("mtp"));
  EXPECT_THAT(refused("llama3", [](EngineOptions* o) { o->parallel.tensor_parallel_size = 2; }),
              HasSubstr("tensor_parallel_size"));
}

}  // namespace
}  // namespace celer::placed
