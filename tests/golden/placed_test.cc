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

std::vector<fs::path> AllModels() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) all.push_back(entry.path());
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

// The logits of a prompt in two pieces, beside another one, and of one token after it; then its hidden states.
std::vector<float> Outputs(Runner& runner) {
  const std::vector<int32_t> tokens = Prompt(40, runner.info().config.vocab), table = {2, 0, 1};
  const std::vector<int32_t> other = Prompt(7, runner.info().config.vocab), other_table = {3};
  std::vector<float> all;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 23}, {23, 16}, {39, 1}}) {
    const Slice slices[] = {
        {.sequence = 1,
         .tokens = std::span(tokens).subspan(begin, count),
         .position = static_cast<int64_t>(begin),
         .block_table = table,
         .rows = Slice::Rows::kAll,
         .prompt_length = 39,
         .keeps_hidden = true},
        {.sequence = 2, .tokens = other, .block_table = other_table, .rows = Slice::Rows::kLast}};
    const Status queued = runner.Queue(std::span(slices).first(begin == 0 ? 2 : 1));
    EXPECT_TRUE(queued) << queued.error().message();
    const auto output = runner.Take();
    if (!output) {
      ADD_FAILURE() << output.error().message();
      return {};
    }
    all.insert(all.end(), output->logits.begin(), output->logits.end());
    all.insert(all.end(), output->hidden.begin(), output->hidden.end());
  }
  return all;
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

std::vector<int32_t> Answers(const EngineOptions& options, const SamplingParams& sampling, int64_t prompts) {
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  std::vector<std::vector<int32_t>> texts(static_cast<size_t>(prompts));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < prompts; ++i) {
    Request request;
    request.prompt = Prompt(20 + 7 * i, (*engine)->info().vocab);
    request.max_tokens = 60;
    request.sampling = sampling;
    const auto id = (*engine)->Submit(request);
    EXPECT_TRUE(id);
    ids.push_back(*id);
  }
  while ((*engine)->HasWork())
    for (const TokenEvent& event : (*engine)->Step()) {
      EXPECT_EQ(event.error, "");
      const auto at = std::find(ids.begin(), ids.end(), event.request) - ids.begin();
      texts[static_cast<size_t>(at)].push_back(event.token);
    }
  if (options.kv_memory.bytes > 0) {
    EXPECT_GT((*engine)->stats().swaps + (*engine)->stats().recomputations, 0);
  }
  std::vector<int32_t> all;
  for (const auto& text : texts) all.insert(all.end(), text.begin(), text.end());
  return all;
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
