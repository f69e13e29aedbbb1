// Layers on a GPU and the CPU, on two decoders of one GPU, and experts on the CPU: the text of the CPU alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/device.h"
#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"
#include "io/json/json.h"
#include "kernels/shared/test_util.h"
#include "models/load/model.h"

namespace celer {
namespace {

using ::testing::HasSubstr;
using testing::WorstRelative;
namespace fs = std::filesystem;

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

struct Way {
  std::string name;
  PlacementOptions placement;
};

const DeviceOptions kCpu, kGpu = DeviceOptions::Cuda();

std::vector<Way> Ways() {
  return {{"last layer on the GPU", {.gpu_layers = 1}},
          {"cpu, cuda", {.devices = {kCpu, kGpu}}},
          {"cuda, cpu", {.devices = {kGpu, kCpu}}},
          {"cuda, cuda", {.devices = {kGpu, kGpu}}}};
}

// Those that run on a GPU, and whose layers can be on several devices.
std::vector<fs::path> AllModels() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) all.push_back(entry.path());
  for (const auto& entry : fs::directory_iterator(kGolden / "gguf"))
    if (entry.path().extension() == ".gguf") all.push_back(entry.path());
  std::erase_if(all, [](const fs::path& path) {
    const auto config = LoadDecoderConfig(path);
    return !config || !CheckRunsOnGpu(*config, 256) || !CheckLayersPart(*config);
  });
  std::sort(all.begin(), all.end());
  return all;
}

EngineOptions OptionsFor(const fs::path& model, const PlacementOptions& placement) {
  return {.model = model.string(),
          .device = kGpu,
          .context = 160,
          .chunk = 8,
          .sequences = 1,
          .placement = placement};
}

std::vector<int32_t> Prompt(const fs::path& model) {
  const fs::path golden =
      fs::is_directory(model) ? model / "golden.json" : fs::path(model).replace_extension("golden.json");
  auto json = ReadJsonFile(golden);
  if (json && json->contains("same_as"))
    json = ReadJsonFile(kGolden / ((*json)["same_as"].get<std::string>() + ".json"));
  if (!json) {
    ADD_FAILURE() << json.error().message();
    return {};
  }
  return (*json)["prompt"];
}

std::vector<int32_t> Greedy(const EngineOptions& options, const std::vector<int32_t>& prompt, int64_t count) {
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  Request request;
  request.prompt = prompt;
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

EngineOptions OnCpu(const fs::path& model) {
  return {.model = model.string(), .context = 160, .chunk = 8, .sequences = 1};
}

// The prompt, then one token, as logits: of a pass kernel by kernel, and of a captured graph where there is one.
TEST(CudaPlaced, LogitsAgreeWithTheCpu) {
  NEEDS_GPU();
  for (const fs::path& model : AllModels()) {
    if (LoadDecoderConfig(model)->layers < 2) continue;  // nothing to divide
    const std::vector<int32_t> prompt = Prompt(model), table = {2, 0, 1};
    const auto logits = [&](const EngineOptions& options) -> std::vector<float> {
      auto runner = MakeRunner(options);
      if (!runner) {
        ADD_FAILURE() << runner.error().message();
        return {};
      }
      const Slice slice{.tokens = prompt, .block_table = table, .rows = Slice::Rows::kAll};
      auto got = RunLogits(**runner, {&slice, 1});
      if (!got) ADD_FAILURE() << got.error().message();
      return got ? *got : std::vector<float>();
    };
    const std::vector<float> expected = logits(OnCpu(model));
    for (const Way& way : Ways()) {
      SCOPED_TRACE(model.string() + ": " + way.name);
      const std::vector<float> got = logits(OptionsFor(model, way.placement));
      ASSERT_EQ(got.size(), expected.size());
      // Activations of prompts are bf16 on the GPU; a near tie between two experts may fall either way.
      const bool sparse = LoadDecoderConfig(model)->moe.experts > 0;
      if (!sparse) {
        EXPECT_LE(WorstRelative(got, expected), 0.1);
      } else {
        EXPECT_TRUE(testing::AllFinite(got));
      }
    }
  }
}

TEST(CudaPlaced, GreedyTokensAreTheCpus) {
  NEEDS_GPU();
  for (const fs::path& model : AllModels()) {
    if (LoadDecoderConfig(model)->layers < 2) continue;  // nothing to divide
    const std::vector<int32_t> prompt = Prompt(model);
    const auto expected = Greedy(OnCpu(model), prompt, 64);
    for (const Way& way : Ways())
      for (const StepLaunch launch : {StepLaunch::kFused, StepLaunch::kEager}) {
        SCOPED_TRACE(model.string() + ": " + way.name + ", " + Name(launch));
        EngineOptions options = OptionsFor(model, way.placement);
        options.launch = launch;
        EXPECT_EQ(Greedy(options, prompt, 64), expected);
      }
  }
}

// Weights of the layers and experts on the CPU are sent to the GPU for batches of two and more tokens: those that layers on
// the GPU give, not the CPU's with its own rounding; and decoding goes on with the keys and values that came back.
TEST(CudaPlaced, PromptsWithWeightsThatAreSent) {
  NEEDS_GPU();
  int ran = 0;
  for (const fs::path& model : AllModels()) {
    const auto config = LoadDecoderConfig(model);
    const bool sparse = config->moe.experts > 0;
    if (config->layers < 2 && !sparse) continue;
    SCOPED_TRACE(model.string());
    const std::vector<int32_t> prompt = Prompt(model), table = {2, 0, 1};
    const auto logits = [&](EngineOptions options) -> std::vector<float> {
      options.launch = StepLaunch::kGraph;  // the kernels of a whole step need all layers
      auto runner = MakeRunner(options);
      if (!runner) {
        ADD_FAILURE() << runner.error().message();
        return {};
      }
      const Slice slice{.tokens = prompt, .block_table = table, .rows = Slice::Rows::kAll};
      auto got = RunLogits(**runner, {&slice, 1});
      if (!got) ADD_FAILURE() << got.error().message();
      return got ? *got : std::vector<float>();
    };
    const std::vector<float> on_gpu = logits(OptionsFor(model, {}));
    const auto expected = Greedy(OnCpu(model), prompt, 64);
    std::vector<PlacementOptions> ways;
    if (config->layers > 1) ways.push_back({.gpu_layers = 1, .stream_prompts = 2});
    if (sparse) ways.push_back({.cpu_experts = PlacementOptions::kAll, .stream_prompts = 2});
    for (const PlacementOptions& way : ways) {
      const std::vector<float> got = logits(OptionsFor(model, way));
      ASSERT_EQ(got.size(), on_gpu.size());
      // Products of some tokens round activations to bf16 and those of others do not, 2^-9 of a value each: 2 % if a
      // dozen of them added up. A near tie between two experts may fall either way.
      EXPECT_LE(WorstRelative(got, on_gpu), sparse ? 0.1 : 2e-2);
      EXPECT_EQ(Greedy(OptionsFor(model, way), prompt, 64), expected);
      ++ran;
    }
  }
  EXPECT_GE(ran, 5);
}

// The chunks of a prompt follow each other: what is in front of one is read from the host's keys and values.
TEST(CudaPlaced, LongPromptsInChunksThatAreSent) {
  NEEDS_GPU();
  std::vector<int32_t> prompt;
  for (int32_t t = 0; t < 100; ++t) prompt.push_back((t * 7) % 40);
  const auto expected = Greedy(OnCpu(kGoldenModel), prompt, 40);
  for (const int64_t chunk : {16, 33, 100}) {
    SCOPED_TRACE(chunk);
    EngineOptions options = OptionsFor(kGoldenModel, {.gpu_layers = 1, .stream_prompts = 2});
    options.chunk = chunk;
    EXPECT_EQ(Greedy(options, prompt, 40), expected);
  }
}

TEST(CudaPlaced, PatternsOfExperts) {
  NEEDS_GPU();
  int ran = 0;
  for (const fs::path& model : AllModels()) {
    const auto config = LoadDecoderConfig(model);
    if (config->moe.experts == 0 || config->layers < 2 || !config->IsSparse(1)) continue;
    SCOPED_TRACE(model.string());
    const std::vector<int32_t> prompt = Prompt(model);
    auto place = ParsePlace("(blk|layers)\\.1\\..*(_exps|experts\\.)=cpu");
    ASSERT_TRUE(place) << place.error().message();
    EXPECT_EQ(Greedy(OptionsFor(model, {.place = *place}), prompt, 64), Greedy(OnCpu(model), prompt, 64));
    ++ran;
  }
  EXPECT_GE(ran, 2);
}

TEST(CudaPlaced, ExpertsOnTheCpu) {
  NEEDS_GPU();
  int ran = 0;
  for (const fs::path& model : AllModels()) {
    if (LoadDecoderConfig(model)->moe.experts == 0) continue;
    ++ran;
    const std::vector<int32_t> prompt = Prompt(model);
    const auto expected = Greedy(OnCpu(model), prompt, 64);
    for (const int64_t layers : {int64_t{1}, PlacementOptions::kAll}) {
      SCOPED_TRACE(model.string() + ": " + std::to_string(layers));
      EXPECT_EQ(Greedy(OptionsFor(model, {.cpu_experts = layers}), prompt, 64), expected);
    }
  }
  EXPECT_GE(ran, 3);
}

// Several sequences with other samplers, while blocks are swapped and recomputed.
TEST(CudaPlaced, ManySequencesInLittleMemory) {
  NEEDS_GPU();
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    EngineOptions options = OptionsFor(kGoldenModel, way.placement);
    options.sequences = 4;
    options.chunk = 512;
    options.kv_memory.bytes = 1 << 18;
    options.kv_host_memory = 1 << 19;
    auto engine = Engine::Load(options);
    ASSERT_TRUE(engine) << engine.error().message();
    EXPECT_THAT((*engine)->info().device, HasSubstr("cuda:0"));
    int finished = 0, tokens = 0;
    for (int i = 0; i < 12; ++i) {
      Request request;
      for (int32_t t = 0; t < 10 + 5 * i; ++t) request.prompt.push_back((t * 7 + i) % 40);
      request.max_tokens = 40;
      request.sampling.temperature = i % 3 == 0 ? 0 : 0.8f;
      request.sampling.seed = static_cast<uint64_t>(i);
      ASSERT_TRUE((*engine)->Submit(request));
    }
    while ((*engine)->HasWork())
      for (const TokenEvent& event : (*engine)->Step()) {
        EXPECT_EQ(event.error, "");
        finished += event.last;
        tokens += event.token >= 0;
      }
    EXPECT_EQ(finished, 12);
    EXPECT_EQ(tokens, 12 * 40);
  }
}

TEST(CudaPlaced, AsManyLayersAsFit) {
  NEEDS_GPU();
  EngineOptions options = OptionsFor(kGoldenModel, {.gpu_memory = int64_t{8} << 30});
  auto whole = MakeRunner(options);
  ASSERT_TRUE(whole) << whole.error().message();
  EXPECT_THAT((*whole)->info().device, ::testing::Not(HasSubstr("+")));
  options.placement.gpu_layers = 99;
  EXPECT_THAT(MakeRunner(options).error().message(), HasSubstr("`gpu_layers` 99: the model has"));
  options.placement = {.gpu_memory = 1 << 20, .gpu_layers = 1};
  const auto none = MakeRunner(options);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("no layer fits"));
  options.placement = {.gpu_memory = 1 << 20};
  auto cpu = MakeRunner(options);
  ASSERT_TRUE(cpu) << cpu.error().message();
  EXPECT_EQ((*cpu)->info().device, "cpu");
}

}  // namespace
}  // namespace celer
