// Tiny models of every family against what Hugging Face transformers computes with them: logits, 200 greedy
// tokens, and that neither chunking nor the rest of the batch changes a bit. tests/golden/README.md says how
// they were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"
#include "models/config/family.h"
#include "models/load/model.h"

namespace celer {
namespace {

using testing::WorstRelative;
namespace fs = std::filesystem;

// Relative to the largest logit. Exact: as far as f32 arithmetic in another order goes. Else a sanity bound:
// a tiny model's few columns average nothing out. matmul_test.cc bounds each product, fused_test.cc a model
// of a real one's shape, and tests/end_to_end the perplexity.
double LogitTolerance() {
  return Exact() ? 1e-4 : 0.1;
}

struct Golden {
  std::string name;
  fs::path model;
  std::vector<int32_t> prompt, greedy;
  std::vector<float> logits;  // [prompt, vocab]
};

nlohmann::json MustRead(const fs::path& path) {
  auto json = ReadJsonFile(path);
  if (!json) ADD_FAILURE() << json.error().message();
  return json ? *json : nlohmann::json::object();
}

// `base` is the path without ".json": "models/llama3/golden".
Golden ReadGolden(const std::string& name, const fs::path& model, fs::path base) {
  nlohmann::json json = MustRead(base.string() + ".json");
  if (json.contains("same_as")) {
    base = kGolden / json["same_as"].get<std::string>();
    json = MustRead(base.string() + ".json");
  }
  Golden golden{name, model, json["prompt"], json["greedy"], {}};
  auto file = SafetensorsFile::Open(base.string() + ".safetensors");
  if (!file) {
    ADD_FAILURE() << file.error().message();
    return golden;
  }
  const TensorRecord* record = file->Find("prompt_logits");
  golden.logits.resize(record->bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), record->bytes.data(), record->bytes.size());
  return golden;
}

std::vector<Golden> AllModels() {
  std::vector<Golden> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models"))
    all.push_back(ReadGolden(entry.path().filename(), entry.path(), entry.path() / "golden"));
  for (const char* folder : {"gguf", "llama2c"})
    for (const auto& entry : fs::directory_iterator(kGolden / folder))
      if (entry.path().extension() == ".gguf" || entry.path().extension() == ".bin")
        all.push_back(ReadGolden(entry.path().filename(), entry.path(),
                                 entry.path().parent_path() / (entry.path().stem().string() + ".golden")));
  std::sort(all.begin(), all.end(), [](const Golden& a, const Golden& b) { return a.name < b.name; });
  return all;
}

// A runner with an f32 KV cache, so that nothing but the order of additions differs from the reference.
std::unique_ptr<Runner> LoadRunner(const fs::path& model, const char* weights = "stored") {
  auto runner = celer::MakeRunner({.model = model.string(),
                                   .weights = *WeightOptions::Parse(weights),
                                   .kv = KvType::kF32,
                                   .sequences = 4});
  if (!runner) {
    ADD_FAILURE() << runner.error().message();
    return nullptr;
  }
  EXPECT_GE((*runner)->info().kv_blocks, 44);
  return std::move(*runner);
}

std::vector<float> LogitsOf(Runner& runner, std::span<const Slice> slices) {
  auto logits = RunLogits(runner, slices);
  if (!logits) ADD_FAILURE() << logits.error().message();
  return logits ? std::move(*logits) : std::vector<float>();
}

std::vector<int32_t> Blocks(int first, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(first + count - 1 - i);  // not in order, as in real life
  return out;
}

std::vector<float> RunWhole(Runner& runner, std::span<const int32_t> tokens) {
  const auto table = Blocks(0, 16);
  const Slice slice{
      .tokens = tokens, .position = 0, .state = 0, .block_table = table, .rows = Slice::Rows::kAll};
  return LogitsOf(runner, {&slice, 1});
}

TEST(Golden, ThereAreModelsOfEveryFamily) {
  std::vector<std::string> families;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) {
    auto config = LoadDecoderConfig(entry.path());
    ASSERT_TRUE(config) << config.error().message();
    families.push_back(config->family);
  }
  for (const Family& family : Families())
    EXPECT_NE(std::find(families.begin(), families.end(), family.name), families.end()) << family.name;
}

TEST(Golden, LogitsAgreeWithTransformers) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto runner = LoadRunner(golden.model);
    ASSERT_TRUE(runner);
    const auto logits = RunWhole(*runner, golden.prompt);
    ASSERT_EQ(logits.size(), golden.logits.size());
    EXPECT_LE(WorstRelative(logits, golden.logits), LogitTolerance());
  }
}

TEST(Golden, TwoHundredGreedyTokensAreEqual) {
  if (!Exact()) GTEST_SKIP() << "near ties fall either way where activations are rounded; see fused_test.cc";
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto engine = Engine::Load({.model = golden.model.string(), .kv = KvType::kF32});
    ASSERT_TRUE(engine) << engine.error().message();
    Request request;
    request.prompt = golden.prompt;
    request.max_tokens = static_cast<int64_t>(golden.greedy.size());
    auto id = (*engine)->Submit(request);
    ASSERT_TRUE(id) << id.error().message();
    std::vector<int32_t> got;
    while ((*engine)->HasWork())
      for (const TokenEvent& event : (*engine)->Step()) got.push_back(event.token);
    EXPECT_EQ(got, golden.greedy);
  }
}

// With any kernels: what the engine says is what the model computes.
TEST(Golden, TheEngineChoosesTheLargestLogit) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto engine = Engine::Load({.model = golden.model.string(), .kv = KvType::kF32});
    ASSERT_TRUE(engine) << engine.error().message();
    Request request;
    request.prompt = golden.prompt;
    request.max_tokens = 40;
    ASSERT_TRUE((*engine)->Submit(request));
    std::vector<int32_t> tokens = golden.prompt;
    while ((*engine)->HasWork())
      for (const TokenEvent& event : (*engine)->Step()) tokens.push_back(event.token);
    ASSERT_EQ(tokens.size(), golden.prompt.size() + 40);
    auto runner = LoadRunner(golden.model);
    ASSERT_TRUE(runner);
    const auto table = Blocks(0, 16);
    const auto vocab = static_cast<size_t>(runner->info().config.vocab);
    for (size_t begin = 0; begin + 1 < tokens.size();) {
      const size_t count = begin == 0 ? golden.prompt.size() : 1;
      const Slice slice{.tokens = std::span<const int32_t>(tokens).subspan(begin, count),
                        .position = static_cast<int64_t>(begin),
                        .state = 0,
                        .block_table = table,
                        .rows = Slice::Rows::kLast};
      const auto logits = LogitsOf(*runner, {&slice, 1});
      ASSERT_EQ(logits.size(), vocab);
      ASSERT_TRUE(testing::AllFinite(logits));
      begin += count;
      ASSERT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), tokens[begin]) << begin;
    }
  }
}

TEST(Golden, AnyChunkingGivesTheSameBits) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto runner = LoadRunner(golden.model);
    ASSERT_TRUE(runner);
    std::vector<int32_t> tokens = golden.prompt;
    tokens.insert(tokens.end(), golden.greedy.begin(), golden.greedy.begin() + 40);
    const auto whole = RunWhole(*runner, tokens);
    ASSERT_TRUE(testing::AllFinite(whole));
    const size_t vocab = static_cast<size_t>(runner->info().config.vocab);
    for (const int64_t chunk : {1, 3, 17, 63}) {
      const auto table = Blocks(20, 16);
      for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
        const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
        const Slice slice{.tokens = std::span<const int32_t>(tokens).subspan(begin, count),
                          .position = static_cast<int64_t>(begin),
                          .state = 1,
                          .block_table = table,
                          .rows = Slice::Rows::kAll,
                          .prompt_length = static_cast<int64_t>(tokens.size())};
        const auto logits = LogitsOf(*runner, {&slice, 1});
        ASSERT_EQ(0, std::memcmp(logits.data(), whole.data() + begin * vocab, count * vocab * sizeof(float)))
            << "chunks of " << chunk << ", tokens from " << begin;
      }
    }
  }
}

TEST(Golden, AnyCompanyGivesTheSameBits) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto runner = LoadRunner(golden.model);
    ASSERT_TRUE(runner);
    const auto alone = RunWhole(*runner, golden.prompt);
    ASSERT_TRUE(testing::AllFinite(alone));
    std::vector<int32_t> other(golden.greedy.begin(), golden.greedy.begin() + 31);
    const auto table = Blocks(0, 16), other_table = Blocks(16, 16), third_table = Blocks(40, 4);
    const Slice slices[] = {
        {.tokens = other, .position = 0, .state = 1, .block_table = other_table, .rows = Slice::Rows::kLast},
        {.tokens = golden.prompt, .position = 0, .state = 0, .block_table = table, .rows = Slice::Rows::kAll},
        {.tokens = std::span(other).first(1),
         .position = 0,
         .state = 2,
         .block_table = third_table,
         .rows = Slice::Rows::kNone},
    };
    const auto logits = LogitsOf(*runner, slices);
    const auto row = std::span(logits).subspan(static_cast<size_t>(runner->info().config.vocab));
    ASSERT_EQ(row.size(), alone.size());
    EXPECT_EQ(0, std::memcmp(row.data(), alone.data(), alone.size() * sizeof(float)));
  }
}

// The same fields under the names that older versions of transformers wrote.
TEST(Golden, OldAndNewConfigNamesMeanTheSame) {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) {
    if (!fs::exists(entry.path() / "config.v4.json")) continue;
    SCOPED_TRACE(entry.path().filename());
    auto now = ConfigFromHf(MustRead(entry.path() / "config.json"), "config.json");
    auto old = ConfigFromHf(MustRead(entry.path() / "config.v4.json"), "config.v4.json");
    ASSERT_TRUE(now) << now.error().message();
    ASSERT_TRUE(old) << old.error().message();
    EXPECT_EQ(now->rope.theta, old->rope.theta);
    EXPECT_EQ(now->rope.scaling, old->rope.scaling);
    EXPECT_EQ(now->rope.factor, old->rope.factor);
    EXPECT_EQ(now->rope.original_positions, old->rope.original_positions);
    EXPECT_EQ(now->head_dim, old->head_dim);
    EXPECT_EQ(now->kv_heads, old->kv_heads);
    EXPECT_EQ(now->tied_embeddings, old->tied_embeddings);
    EXPECT_EQ(now->sliding_window, old->sliding_window);
    EXPECT_EQ(now->windowed_layer, old->windowed_layer);
    EXPECT_EQ(now->moe.sparse_layer, old->moe.sparse_layer);
    ++compared;
  }
  EXPECT_GT(compared, 5);
}

// Quantized while loading: the logits move, but not far. A random tiny model has no redundancy, so the bounds
// are loose; perplexity of a real model is what counts (docs/performance.md).
TEST(Golden, QuantizedWhileLoadingStaysNear) {
  const Golden golden = ReadGolden("llama3", kGolden / "models/llama3", kGolden / "models/llama3/golden");
  const std::pair<const char*, double> cases[] = {{"f32", 1e-4}, {"bf16", 1e-4},    {"f16", 2e-3},
                                                  {"int8", 0.1}, {"int8-g32", 0.1}, {"int4", 0.6}};
  for (const auto& [weights, bound] : cases) {
    SCOPED_TRACE(weights);
    auto runner = LoadRunner(golden.model, weights);
    ASSERT_TRUE(runner);
    const double worst = WorstRelative(RunWhole(*runner, golden.prompt), golden.logits);
    EXPECT_LE(worst, Exact() ? bound : std::max(bound, LogitTolerance()));
    if (std::string_view(weights).starts_with("int")) {
      EXPECT_GT(worst, 0) << "was anything quantized?";
    }
  }
}

}  // namespace
}  // namespace celer
