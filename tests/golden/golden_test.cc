// Tiny models of every family against what Hugging Face transformers computes with them: logits, 200 greedy
// tokens, and that neither chunking nor company in the batch changes a bit. tests/golden/README.md says how
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
#include "engine/block_manager.h"
#include "engine/kv_cache.h"
#include "engine/model_runner.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/decoder.h"
#include "models/family.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(CELER_SOURCE_DIR) / "tests/golden";

// The reference multiplies in float, and so do these tests: kernels that make activations int8 have a
// tolerance of their own in matmul_test.cc, and perplexity as their judge (tests/end_to_end). Set before
// anything picks a kernel.
[[maybe_unused]] const int kExact = setenv("CELER_FORCE", "matmul:portable", 1);

// Relative to the largest logit, as far as f32 arithmetic in another order goes.
constexpr double kTolerance = 1e-4;

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

ThreadPool& Pool() {
  static ThreadPool pool;
  return pool;
}

// A runner with an f32 KV cache of 256 positions, so that nothing but the order of additions differs from the
// reference.
std::unique_ptr<ModelRunner> MakeRunner(const fs::path& model, const char* weights = "stored") {
  auto options = WeightOptions::Parse(weights);
  auto decoder = Decoder::Load(model, {*options}, Pool());
  if (!decoder) {
    ADD_FAILURE() << decoder.error().message();
    return nullptr;
  }
  auto kv = KvCache::Make(decoder->config(), DType::kF32, 64, CpuAllocator());
  if (!kv) return nullptr;
  return std::make_unique<ModelRunner>(std::move(*decoder), std::move(*kv));
}

std::vector<int32_t> Blocks(int first, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(first + count - 1 - i);  // not in order, as in real life
  return out;
}

std::vector<float> RunWhole(ModelRunner& runner, std::span<const int32_t> tokens) {
  const auto table = Blocks(0, 16);
  const Piece piece{.tokens = tokens, .position = 0, .block_table = table, .logits = Piece::Logits::kAll};
  const auto logits = runner.Run({&piece, 1});
  return {logits.begin(), logits.end()};
}

double WorstRelative(std::span<const float> got, std::span<const float> expected) {
  double scale = 0, worst = 0;
  for (const float v : expected) scale = std::max(scale, std::abs(double{v}));
  for (size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(double{got[i]} - expected[i]) / scale);
  return worst;
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
    auto runner = MakeRunner(golden.model);
    ASSERT_TRUE(runner);
    const auto logits = RunWhole(*runner, golden.prompt);
    ASSERT_EQ(logits.size(), golden.logits.size());
    EXPECT_LE(WorstRelative(logits, golden.logits), kTolerance);
  }
}

TEST(Golden, TwoHundredGreedyTokensAreEqual) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto engine = Engine::Load({.model = golden.model.string(), .kv = "f32"});
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

TEST(Golden, AnyChunkingGivesTheSameBits) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto runner = MakeRunner(golden.model);
    ASSERT_TRUE(runner);
    std::vector<int32_t> tokens = golden.prompt;
    tokens.insert(tokens.end(), golden.greedy.begin(), golden.greedy.begin() + 40);
    const auto whole = RunWhole(*runner, tokens);
    const size_t vocab = static_cast<size_t>(runner->vocab());
    for (const int64_t chunk : {1, 3, 17, 63}) {
      const auto table = Blocks(20, 16);
      for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
        const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
        const Piece piece{.tokens = std::span<const int32_t>(tokens).subspan(begin, count),
                          .position = static_cast<int64_t>(begin),
                          .block_table = table,
                          .logits = Piece::Logits::kAll};
        const auto logits = runner->Run({&piece, 1});
        ASSERT_EQ(0, std::memcmp(logits.data(), whole.data() + begin * vocab, count * vocab * sizeof(float)))
            << "chunks of " << chunk << ", tokens from " << begin;
      }
    }
  }
}

TEST(Golden, AnyCompanyGivesTheSameBits) {
  for (const Golden& golden : AllModels()) {
    SCOPED_TRACE(golden.name);
    auto runner = MakeRunner(golden.model);
    ASSERT_TRUE(runner);
    const auto alone = RunWhole(*runner, golden.prompt);
    std::vector<int32_t> other(golden.greedy.begin(), golden.greedy.begin() + 31);
    const auto table = Blocks(0, 16), other_table = Blocks(16, 16), third_table = Blocks(40, 4);
    const Piece pieces[] = {
        {.tokens = other, .position = 0, .block_table = other_table, .logits = Piece::Logits::kLast},
        {.tokens = golden.prompt, .position = 0, .block_table = table, .logits = Piece::Logits::kAll},
        {.tokens = std::span(other).first(1),
         .position = 0,
         .block_table = third_table,
         .logits = Piece::Logits::kNone},
    };
    const auto logits = runner->Run(pieces);
    const auto row = logits.subspan(static_cast<size_t>(runner->vocab()));
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
    auto runner = MakeRunner(golden.model, weights);
    ASSERT_TRUE(runner);
    const double worst = WorstRelative(RunWhole(*runner, golden.prompt), golden.logits);
    EXPECT_LE(worst, bound);
    if (std::string_view(weights).starts_with("int")) {
      EXPECT_GT(worst, 0) << "was anything quantized?";
    }
  }
}

}  // namespace
}  // namespace celer
