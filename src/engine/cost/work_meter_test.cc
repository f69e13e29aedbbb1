// What the engine says of its work against what the limits model says of the same steps.
#include "engine/cost/work_meter.h"

#include <gtest/gtest.h>

#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"
#include "limits/roofline.h"

namespace celer {
namespace {

constexpr int64_t kKvBytes = 512, kPrompt = 40, kAnswer = 9;

LlmShape Shape() {
  return {{.layers = 3,
           .hidden = 64,
           .intermediate = 160,
           .vocab = 48,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 16},
          {},
          "test"};
}

std::vector<OperatorWork> WorkOf(const StepShape& shape) {
  static const DecoderConfig config = FromLlmShape(Shape());
  static const StepMatrices matrices = MatricesOf(Shape(), {});
  return CountStep(config, matrices, kKvBytes, shape);
}

std::unique_ptr<Engine> MakeEngine(int64_t chunk) {
  SimulatedRunner::Options options{.model = {.vocab = 48, .seed = 3}};
  options.info.config = FromLlmShape(Shape());
  options.info.kv_blocks = 64;
  options.info.context = 256;
  options.info.kv_bytes_per_token = kKvBytes;
  options.work = WorkOf;
  return EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(options)), {.chunk = chunk});
}

Machine TestMachine() {
  return {.name = "test",
          .source = "flags",
          .memory_bytes = 1e9,
          .read_bytes_per_s = 3e9,
          .flops = {{"f32", 2e9}, {"bf16", 4e9}}};
}

struct Sums {
  double bytes = 0, flops = 0, limit = 0;
  void Add(const StepShape& shape) {
    const OperatorWork work = Sum(WorkOf(shape));
    bytes += work.bytes;
    for (const auto& [type, count] : work.flops) flops += count;
    limit += LimitOf(work, TestMachine()).seconds();
  }
};

void RunAll(Engine& engine) {
  while (engine.HasWork())
    for (const TokenEvent& event : engine.Step()) ASSERT_EQ(event.error, "");
}

void ExpectSame(const EngineStats& stats, const Sums& sums) {
  EXPECT_NEAR(stats.work_bytes, sums.bytes, 1e-9 * sums.bytes);
  EXPECT_NEAR(stats.work_flops, sums.flops, 1e-9 * sums.flops);
  EXPECT_NEAR(stats.limit_seconds, sums.limit, 1e-9 * sums.limit);
}

TEST(WorkMeter, CountsWhatTheLimitsModelSaysOfEachStep) {
  auto engine = MakeEngine(512);
  engine->SetMachine(TestMachine());
  for (int answer = 0; answer < 2; ++answer)  // both decode in the same steps
    ASSERT_TRUE(engine->Submit({.prompt = std::vector<int32_t>(kPrompt, 7 + answer), .max_tokens = kAnswer}));
  RunAll(*engine);
  Sums sums;
  sums.Add({.sequences = 2, .tokens = kPrompt});
  for (int64_t i = 0; i + 1 < kAnswer; ++i) sums.Add({.sequences = 2, .tokens = 1, .position = kPrompt + i});
  const EngineStats stats = engine->stats();
  ExpectSame(stats, sums);
  EXPECT_EQ(stats.steps, kAnswer);
  EXPECT_EQ(stats.steps_by_tokens[1], kAnswer - 1);  // of two tokens
  EXPECT_EQ(stats.steps_by_tokens[7], 1);            // of eighty
  EXPECT_GT(stats.busy_seconds, 0);
}

TEST(WorkMeter, APromptInPiecesHasLogitsOnce) {
  auto engine = MakeEngine(16);
  engine->SetMachine(TestMachine());
  ASSERT_TRUE(engine->Submit({.prompt = std::vector<int32_t>(kPrompt, 7), .max_tokens = 1}));
  RunAll(*engine);
  Sums sums;
  for (int64_t position = 0; position < kPrompt; position += 16) {
    std::vector<OperatorWork> work =
        WorkOf({.tokens = std::min<int64_t>(16, kPrompt - position), .position = position});
    if (position + 16 < kPrompt) std::erase_if(work, [](const auto& w) { return w.name == "logits"; });
    const OperatorWork sum = Sum(work);
    sums.bytes += sum.bytes;
    for (const auto& [type, count] : sum.flops) sums.flops += count;
    sums.limit += LimitOf(sum, TestMachine()).seconds();
  }
  ExpectSame(engine->stats(), sums);
}

TEST(WorkMeter, AnEmbeddingHasNoLogitsAndNoMachineNoLimit) {
  auto engine = MakeEngine(512);
  ASSERT_TRUE(engine->Submit({.prompt = std::vector<int32_t>(kPrompt, 7), .pooling = Pooling::kMean}));
  RunAll(*engine);
  std::vector<OperatorWork> work = WorkOf({.tokens = kPrompt});
  std::erase_if(work, [](const auto& w) { return w.name == "logits"; });
  const EngineStats stats = engine->stats();
  EXPECT_NEAR(stats.work_bytes, Sum(work).bytes, 1e-9 * stats.work_bytes);
  EXPECT_EQ(stats.limit_seconds, 0);
}

TEST(WorkMeter, FiguresOfTheBeginning) {
  auto engine = MakeEngine(16);
  ASSERT_TRUE(engine->Submit({.prompt = std::vector<int32_t>(kPrompt, 7), .max_tokens = 3}));
  const auto before = std::chrono::steady_clock::now();
  std::vector<TokenEvent> events;
  while (engine->HasWork())
    for (TokenEvent& event : engine->Step()) events.push_back(std::move(event));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_GE(events[0].begun, before);
  EXPECT_LE(events[0].begun, std::chrono::steady_clock::now());
  EXPECT_EQ(engine->stats().looked_up_tokens, kPrompt);
}

}  // namespace
}  // namespace celer
