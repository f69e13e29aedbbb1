// Layers for multi-token prediction: their logits are those of transformers' layer (tools/make_golden_predictors.py), and
// what they draft changes no text.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "celer/engine.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/make_runner.h"
#include "golden.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

// With the reference of a folder beside it: "gguf/NAME.gguf".
std::string PredictorModel(const std::string& name) {
  return (kGolden / "predictors" / name).string();
}

std::filesystem::path PredictorReference(const std::string& name) {
  const std::filesystem::path path = PredictorModel(name);
  return path.extension() == ".gguf" ? path.parent_path().parent_path() / path.stem() : path;
}

const Speculation kPredictor = {.kind = Speculation::Kind::kDraft, .draft = "mtp"};

class PredictorTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::vector<float> Floats(const SafetensorsFile& file, const char* name) {
    const TensorRecord* const record = file.Find(name);
    if (!record) {
      ADD_FAILURE() << name;
      return {};
    }
    std::vector<float> out(record->bytes.size() / sizeof(float));
    std::memcpy(out.data(), record->bytes.data(), record->bytes.size());
    return out;
  }
  static EngineOptions Options() {
    return {.model = PredictorModel(GetParam()),
            .kv = KvType::kF32,
            .threads = 2,
            .context = 200,
            .sequences = 4};
  }
};

TEST_P(PredictorTest, LogitsAreThoseOfTransformers) {
  const auto json = ReadJsonFile(PredictorReference(GetParam()) / "golden.json");
  const auto file = SafetensorsFile::Open(PredictorReference(GetParam()) / "golden.safetensors");
  ASSERT_TRUE(json && file);
  const auto prompt = (*json)["prompt"].get<std::vector<int32_t>>(),
             drafted = (*json)["drafted"].get<std::vector<int32_t>>();
  std::vector<int32_t> text = prompt;
  text.push_back((*json)["greedy"][0].get<int32_t>());
  EngineOptions options = Options();
  options.speculation = kPredictor;
  auto runner = MakeRunner(options);
  ASSERT_TRUE(runner) << runner.error().message();
  const std::unique_ptr<Runner> predictor = (*runner)->TakePredictor();
  ASSERT_TRUE(predictor);
  const std::vector<int32_t> table = {1, 0}, other = {3, 2};
  const Slice slice{.sequence = 1,
                    .tokens = prompt,
                    .state = 0,
                    .block_table = table,
                    .rows = Slice::Rows::kAll,
                    .keeps_hidden = true};
  ASSERT_TRUE((*runner)->Queue({&slice, 1}));
  const auto output = (*runner)->Take();
  ASSERT_TRUE(output);
  const std::vector<float> hidden(output->hidden.begin(), output->hidden.end());
  const size_t width = hidden.size() / prompt.size(), vocab = output->logits.size() / prompt.size();

  // In two steps, beside another sequence.
  const size_t first = 9;
  std::vector<float> logits, own;
  for (const auto& [from, to] : {std::pair<size_t, size_t>{0, first}, {first, prompt.size()}}) {
    const auto tokens = std::span<const int32_t>(text).subspan(from + 1, to - from);
    const auto before = std::span<const float>(hidden).subspan(from * width, (to - from) * width);
    const Slice slices[] = {{.sequence = 7,
                             .tokens = std::span(tokens).first(2),
                             .block_table = other,
                             .rows = Slice::Rows::kNone,
                             .before = before.first(2 * width)},
                            {.sequence = 1,
                             .tokens = tokens,
                             .position = static_cast<int64_t>(from),
                             .block_table = table,
                             .rows = Slice::Rows::kAll,
                             .keeps_hidden = true,
                             .before = before}};
    ASSERT_TRUE(predictor->Queue(slices));
    const auto step = predictor->Take();
    ASSERT_TRUE(step);
    logits.insert(logits.end(), step->logits.begin(), step->logits.end());
    own.assign(step->hidden.end() - static_cast<int64_t>(width), step->hidden.end());
  }
  const double tolerance = Exact() ? 1e-4 : 0.1;
  EXPECT_LE(testing::WorstRelative(logits, Floats(*file, "logits")), tolerance);

  // It goes on with its own tokens and hidden states.
  std::vector<float> rows(logits.end() - static_cast<int64_t>(vocab), logits.end());
  for (size_t i = 0; i + 1 < drafted.size(); ++i) {
    const std::vector<float> before = own;
    const Slice next{.sequence = 1,
                     .tokens = std::span(&drafted[i], 1),
                     .position = static_cast<int64_t>(prompt.size() + i),
                     .block_table = table,
                     .rows = Slice::Rows::kLast,
                     .keeps_hidden = true,
                     .before = before};
    ASSERT_TRUE(predictor->Queue({&next, 1}));
    const auto step = predictor->Take();
    ASSERT_TRUE(step);
    rows.insert(rows.end(), step->logits.begin(), step->logits.end());
    own.assign(step->hidden.begin(), step->hidden.end());
  }
  EXPECT_LE(testing::WorstRelative(rows, Floats(*file, "drafted_logits")), tolerance);
}

struct PredictorRun {
  std::map<std::pair<size_t, int>, std::vector<std::pair<int32_t, float>>> tokens;
  EngineStats stats;
};

PredictorRun RunAnswers(Engine& engine, const std::vector<Request>& requests) {
  PredictorRun ran;
  std::map<int64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) index[*engine.Submit(requests[i])] = i;
  while (engine.HasWork()) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_EQ(event.error, "");
      ran.tokens[{index[event.request], event.answer}].emplace_back(event.token, event.logprob);
    }
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  ran.stats = engine.stats();
  return ran;
}

// Batches of five and more, greedy and drawn, several answers, beams beside them.
std::vector<Request> PredictorRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    Request request;
    for (int k = 0; k < 1 + 11 * i; ++k) request.prompt.push_back((i / 2 * 31 + k * k * 5 + k * 7) % 48);
    request.max_tokens = 50;
    request.sampling.logprobs = 0;
    if (i == 3) request.n = 2;
    if (i == 5) request.sampling = {.temperature = 0.7f, .top_k = 20, .seed = 5, .logprobs = 0};
    if (i == 6) request.beam.width = request.n = 2;
    requests.push_back(request);
  }
  return requests;
}

TEST_P(PredictorTest, ItsDraftsChangeNoText) {
  const std::vector<Request> requests = PredictorRequests();
  auto plain = Engine::Load(Options());
  ASSERT_TRUE(plain) << plain.error().message();
  const PredictorRun want = RunAnswers(**plain, requests);
  for (const int depth : {1, 3, 0})
    for (const int64_t kv_blocks : {60, 22}) {
      EngineOptions options = Options();
      options.deterministic = true;
      options.chunk = depth == 3 ? 20 : 512;
      options.speculation = kPredictor;
      options.speculation.depth = depth;
      options.speculation.always = depth != 0;
      if (kv_blocks < 30) options.sequences = 2;  // they preempt each other
      if (kv_blocks < 30) options.preemption = depth == 1 ? Preemption::kSwap : Preemption::kRecompute;
      if (kv_blocks < 30) options.kv_host_memory = 4 << 20;
      auto engine = Engine::Load(options);
      ASSERT_TRUE(engine) << engine.error().message();
      const PredictorRun got = RunAnswers(**engine, requests);
      EXPECT_EQ(got.tokens, want.tokens) << "depth " << depth << ", " << kv_blocks;
      EXPECT_EQ(RunAnswers(**engine, requests).tokens, want.tokens)
          << "with cached prefixes, depth " << depth;
      if (depth == 0) continue;  // where it pays
      EXPECT_GT(got.stats.accepted_tokens, 0);
      EXPECT_GT(got.stats.drafted_tokens, got.stats.accepted_tokens);
    }
}

TEST_P(PredictorTest, ItAcceptsAsManyBehindACachedPrefix) {
  EngineOptions options = Options();
  options.chunk = 16;
  options.speculation = kPredictor;
  options.speculation.depth = 1;
  options.speculation.always = true;
  auto engine = Engine::Load(options);
  ASSERT_TRUE(engine);
  const auto json = ReadJsonFile(PredictorReference(GetParam()) / "golden.json");
  ASSERT_TRUE(json);
  Request request;
  request.prompt = (*json)["prompt"].get<std::vector<int32_t>>();
  const auto greedy = (*json)["greedy"].get<std::vector<int32_t>>();
  request.prompt.insert(request.prompt.end(), greedy.begin(), greedy.begin() + 60);
  request.max_tokens = 80;
  const PredictorRun first = RunAnswers(**engine, {request}), again = RunAnswers(**engine, {request});
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_GT(again.stats.cached_tokens, 60);
  EXPECT_EQ(again.stats.accepted_tokens, 2 * first.stats.accepted_tokens);
  EXPECT_EQ(again.stats.drafted_tokens, 2 * first.stats.drafted_tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, PredictorTest,
                         ::testing::Values("deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5",
                                           "gguf/glm4_moe.gguf"));

TEST(Predictor, AModelWithoutOneIsRefused) {
  for (const auto& [model, word] :
       {std::pair("glm4_moe", "has no layer"), {"qwen3_5", "has no layer"}, {"llama3", "type"}}) {
    const auto engine =
        Engine::Load({.model = (kGolden / "models" / model).string(), .speculation = kPredictor});
    ASSERT_FALSE(engine);
    EXPECT_NE(engine.error().message().find("multi-token prediction"), std::string::npos);
    EXPECT_NE(engine.error().message().find(word), std::string::npos) << engine.error().message();
  }
}

}  // namespace
}  // namespace celer
