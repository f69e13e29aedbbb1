// LoRA adapters on a GPU against what PEFT computes with them, in batches with others, in captured steps, and in less
// memory than all of them take.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "../golden/golden.h"
#include "base/device.h"
#include "celer/adapters.h"
#include "celer/engine.h"
#include "engine/runners/cuda_runner.h"
#include "engine/runners/run_logits.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"
#include "models/cuda/decoder.h"
#include "models/lora/lora.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::WorstRelative;

const fs::path kFolder = kGolden / "lora";

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

struct Golden {
  fs::path model;
  std::vector<int32_t> prompt;
  std::vector<float> logits;  // [prompt, vocab], of PEFT
};

Golden ReadGolden(const std::string& name) {
  const auto json = ReadJsonFile(kFolder / name / "golden.json");
  EXPECT_TRUE(json) << name;
  Golden golden{kGolden / json->at("model").get<std::string>(), json->at("prompt"), {}};
  const auto file = SafetensorsFile::Open(kFolder / name / "golden.safetensors");
  const auto bytes = file->Find("prompt_logits")->bytes;
  golden.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), bytes.data(), bytes.size());
  return golden;
}

std::shared_ptr<const LoraAdapter> Load(const std::string& name, const fs::path& model) {
  auto adapter = LoadLora(name, kFolder / name, model, DefaultThreadPool());
  EXPECT_TRUE(adapter) << adapter.error().message();
  return adapter ? *adapter : nullptr;
}

enum class Products { kExact, kFast, kDeterministic };

std::unique_ptr<Runner> OnGpu(const fs::path& model, Products products, int64_t memory = 64 << 20,
                              const char* weights = "stored") {
  auto host = Model::Load(model, {.pack = false}, DefaultThreadPool());
  if (!host) {
    ADD_FAILURE() << host.error().message();
    return nullptr;
  }
  const CudaDecoderOptions options{.weights = *WeightOptions::Parse(weights),
                                   .kv = DType::kF16,
                                   .context = 256,
                                   .max_tokens = 512,
                                   .deterministic = products == Products::kDeterministic,
                                   .exact = products == Products::kExact,
                                   .kv_budget = {.context = 256, .sequences = 16},
                                   .lora_memory = memory};
  auto decoder = CudaDecoder::Make(*host, options);
  auto runner = decoder ? CudaRunner::Make(std::move(*decoder), options, 0, 1) : decoder.error();
  if (!runner) {
    ADD_FAILURE() << runner.error().message();
    return nullptr;
  }
  return std::move(*runner);
}

struct Text {
  std::vector<int32_t> tokens;
  std::shared_ptr<const LoraMix> lora;
};

std::vector<float> LogitsOf(Runner& runner, const std::vector<Text>& texts) {
  std::vector<std::vector<int32_t>> tables;
  std::vector<Slice> slices;
  for (size_t i = 0; i < texts.size(); ++i)
    tables.push_back(
        {static_cast<int32_t>(4 * i + 3), static_cast<int32_t>(4 * i + 1), static_cast<int32_t>(4 * i + 2)});
  for (size_t i = 0; i < texts.size(); ++i)
    slices.push_back({.sequence = static_cast<int64_t>(i),
                      .tokens = texts[i].tokens,
                      .position = 0,
                      .state = static_cast<int32_t>(i),
                      .block_table = tables[i],
                      .rows = Slice::Rows::kAll,
                      .lora = texts[i].lora});
  const auto logits = RunLogits(runner, slices);
  EXPECT_TRUE(logits) << logits.error().message();
  return logits ? *logits : std::vector<float>();
}

TEST(CudaLora, LogitsArePeftsOrTheModuleIsNamed) {
  NEEDS_GPU();
  int ran = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const auto config = LoadDecoderConfig(golden.model);
    ASSERT_TRUE(config);
    if (!CheckRunsOnGpu(*config, 256)) continue;  // refused there in one sentence
    const auto adapter = Load(name, golden.model);
    const auto mix = LoraMix::Make({{.adapter = adapter}});
    ASSERT_TRUE(mix);
    const auto exact = OnGpu(golden.model, Products::kExact), fast = OnGpu(golden.model, Products::kFast);
    ASSERT_TRUE(exact && fast);
    if (const Status fits = exact->CheckLora(**mix); !fits) {
      EXPECT_EQ(fits.error().code(), Error::Code::kUnsupported);
      const auto& matrices = adapter->matrices();
      EXPECT_TRUE(std::any_of(matrices.begin(), matrices.end(), [&](const LoraMatrix& m) {
        return fits.error().message().find(m.module) != std::string::npos;
      })) << fits.error().message();
      continue;
    }
    ++ran;
    // Keys and values are f16 there; activations of `fast` are bf16.
    EXPECT_LE(WorstRelative(LogitsOf(*exact, {{golden.prompt, *mix}}), golden.logits), 4e-3);
    EXPECT_LE(WorstRelative(LogitsOf(*fast, {{golden.prompt, *mix}}), golden.logits), 0.1);
    EXPECT_GT(WorstRelative(LogitsOf(*exact, {{golden.prompt, nullptr}}), golden.logits), 0.01);
  }
  EXPECT_GE(ran, 10);
}

// Eight texts with five adapters and none.
std::vector<Text> EightTexts(const Golden& golden) {
  const auto plain = Load("plain", golden.model), patterns = Load("patterns", golden.model),
             head = Load("head", golden.model), gguf = Load("plain.gguf", golden.model);
  const std::vector<std::vector<LoraUse>> uses = {
      {{plain}}, {}, {{patterns}}, {{head}}, {{gguf}}, {{plain, 0.5f}}, {{plain}, {head, -2}}, {{plain}}};
  std::vector<Text> texts;
  for (size_t i = 0; i < uses.size(); ++i) {
    std::vector<int32_t> tokens = golden.prompt;
    std::rotate(tokens.begin(), tokens.begin() + static_cast<int64_t>(i), tokens.end());
    tokens.resize(tokens.size() - i);
    texts.push_back({tokens, *LoraMix::Make(uses[i])});
  }
  return texts;
}

std::vector<float> EachAlone(Runner& runner, const std::vector<Text>& texts) {
  std::vector<float> alone;
  for (const Text& text : texts) {
    const auto one = LogitsOf(runner, {text});
    alone.insert(alone.end(), one.begin(), one.end());
  }
  return alone;
}

TEST(CudaLora, BatchesOfSeveralAdaptersAreEachAlone) {
  NEEDS_GPU();
  const Golden golden = ReadGolden("plain");
  const std::vector<Text> texts = EightTexts(golden);
  for (const Products products : {Products::kExact, Products::kFast, Products::kDeterministic}) {
    const auto runner = OnGpu(golden.model, products);
    ASSERT_TRUE(runner);
    for (const Text& text : texts) ASSERT_TRUE(!text.lora || runner->CheckLora(*text.lora));
    const auto all = LogitsOf(*runner, texts), alone = EachAlone(*runner, texts);
    if (products == Products::kDeterministic)
      EXPECT_EQ(all, alone);
    else
      EXPECT_LE(WorstRelative(all, alone), products == Products::kExact ? 4e-3 : 0.1);
  }
}

// Adapters come and go while sequences run: a batch that does not fit is cut, and an adapter comes back.
TEST(CudaLora, LittleMemoryChangesNothing) {
  NEEDS_GPU();
  const Golden golden = ReadGolden("plain");
  const std::vector<Text> texts = EightTexts(golden);
  int64_t most = 0;
  for (const Text& text : texts) {
    int64_t bytes = 0;
    if (text.lora)
      for (const LoraUse& use : text.lora->uses()) bytes += DeviceBytesOf(*use.adapter);
    most = std::max(most, bytes);
  }
  const auto large = OnGpu(golden.model, Products::kDeterministic),
             small = OnGpu(golden.model, Products::kDeterministic, most);
  ASSERT_TRUE(large && small);
  const auto expected = LogitsOf(*large, texts);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(LogitsOf(*small, texts), expected);
  const auto none = OnGpu(golden.model, Products::kFast, 0),
             tiny = OnGpu(golden.model, Products::kFast, 1000);
  for (const auto& runner : {none.get(), tiny.get()}) {
    const Status fits = runner->CheckLora(*texts[0].lora);
    ASSERT_FALSE(fits);
    EXPECT_NE(fits.error().message().find("lora_memory"), std::string::npos) << fits.error().message();
  }
}

TEST(CudaLora, RunsOnQuantizedWeights) {
  NEEDS_GPU();
  const Golden golden = ReadGolden("plain");
  const auto mix = *LoraMix::Make({{.adapter = Load("plain", golden.model)}});
  for (const char* const weights : {"int8", "fp8"}) {
    const auto runner = OnGpu(golden.model, Products::kFast, 64 << 20, weights);
    ASSERT_TRUE(runner);
    EXPECT_LE(WorstRelative(LogitsOf(*runner, {{golden.prompt, mix}}), golden.logits), 0.3) << weights;
    EXPECT_GT(WorstRelative(LogitsOf(*runner, {{golden.prompt, nullptr}}), golden.logits), 0.4) << weights;
  }
}

// ---- Through the engine: decode steps are captured graphs ----

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

std::unique_ptr<Engine> LoadEngine(const fs::path& model, const std::vector<std::string>& names,
                                   bool deterministic, int64_t memory = 0) {
  EngineOptions options{.model = model.string(),
                        .device = DeviceOptions::Cuda(0),
                        .context = 256,
                        .sequences = 16,
                        .prefix_cache = deterministic,  // else a shorter prompt may be rounded otherwise
                        .deterministic = deterministic};
  options.lora.standing = false;
  options.lora.memory = memory;
  for (const std::string& name : names)
    options.lora.adapters.push_back({.name = name, .path = kFolder / name});
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine) << engine.error().message();
  return engine ? std::move(*engine) : nullptr;
}

std::vector<Request> EightRequests(const Engine& engine, const Golden& golden) {
  const std::vector<std::vector<AdapterScale>> scales = {{{"plain", 1}},
                                                         {},
                                                         {{"patterns", 1}},
                                                         {{"head", 1}},
                                                         {{"plain.gguf", 1}},
                                                         {{"plain", 0.5f}},
                                                         {{"plain", 1}, {"head", -2}},
                                                         {{"plain", 1}}};
  std::vector<Request> requests;
  for (size_t i = 0; i < scales.size(); ++i) {
    Request request;
    request.prompt = golden.prompt;
    request.prompt.resize(golden.prompt.size() - i);
    request.max_tokens = 30;
    request.sampling.logprobs = 0;
    request.lora = scales[i].empty() ? nullptr : *engine.adapters()->Mix(scales[i]);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Answer> AnswersOf(Engine& engine, const std::vector<Request>& requests) {
  std::map<int64_t, Answer> out;
  for (const Request& request : requests) {
    const auto id = engine.Submit(request);
    EXPECT_TRUE(id) << id.error().message();
    if (id) out[*id];
  }
  while (engine.HasWork()) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_EQ(event.error, "");
      out[event.request].tokens.push_back(event.token);
      out[event.request].logprobs.push_back(event.logprob);
    }
    if (engine.fault()) {
      ADD_FAILURE() << engine.fault()->message();
      break;
    }
  }
  std::vector<Answer> answers;
  for (auto& [id, answer] : out) answers.push_back(std::move(answer));
  return answers;
}

TEST(CudaLora, CapturedStepsOfFiveAdaptersAreEachAlone) {
  NEEDS_GPU();
  const Golden golden = ReadGolden("plain");
  const auto engine =
      LoadEngine(golden.model, {"plain", "patterns", "head", "plain.gguf"}, /*deterministic=*/true);
  ASSERT_TRUE(engine);
  const std::vector<Request> requests = EightRequests(*engine, golden);
  const std::vector<Answer> all = AnswersOf(*engine, requests);
  ASSERT_EQ(all.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(AnswersOf(*engine, {requests[i]})[0], all[i]) << i;
  EXPECT_NE(all[0].tokens, all[2].tokens);  // else the comparison shows nothing
  // The same steps with other adapters: the graphs are there already.
  std::vector<Request> turned(requests.rbegin(), requests.rend());
  const std::vector<Answer> again = AnswersOf(*engine, turned);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(again[i], all[requests.size() - 1 - i]) << i;
}

TEST(CudaLora, LoadedAndUnloadedUnderLoad) {
  NEEDS_GPU();
  const Golden golden = ReadGolden("plain");
  const auto engine = LoadEngine(golden.model, {"plain"}, /*deterministic=*/false, 64 << 20);
  ASSERT_TRUE(engine);
  Request plain;
  plain.prompt = golden.prompt;
  plain.max_tokens = 8;
  const std::vector<Answer> expected = AnswersOf(*engine, {plain});
  size_t before = 0, total = 0, after = 0;
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(engine->adapters()->Load({.name = "again", .path = kFolder / "head"}));
    Request with = plain;
    with.lora = *engine->adapters()->Mix(std::vector<AdapterScale>{{"again", 1}});
    ASSERT_TRUE(engine->Submit(with));
    with.lora = {};
    engine->Step();
    ASSERT_TRUE(engine->adapters()->Unload("again"));
    while (engine->HasWork()) engine->Step();
    ASSERT_FALSE(engine->fault());
    ASSERT_EQ(cudaSuccess, cudaMemGetInfo(round == 20 ? &before : &after, &total));
  }
  EXPECT_GE(after + (size_t{64} << 20), before);
  EXPECT_EQ(AnswersOf(*engine, {plain}), expected);
}

}  // namespace
}  // namespace celer
