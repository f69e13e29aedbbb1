// Models with recurrent layers in an engine: sequences that are preempted, swapped out, forked, gone on with as beams,
// and begun behind a cached prefix have the same answers, bit for bit, as those that are left alone.
#include <gtest/gtest.h>

#include <filesystem>

#include "device/cpu_allocator.h"
#include "engine/kv/state_cache.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/cpu_runner.h"
#include "engine_answers.h"
#include "golden.h"

namespace celer::recurrent {
namespace {

using engine_answers::Answers;
using engine_answers::Ask;
using engine_answers::AskAlone;
using engine_answers::Outcome;
using engine_answers::RandomRequest;

struct Room {
  int64_t blocks = 0, host_blocks = 0, states = 0;
};

constexpr Room kAmple = {.blocks = 400, .states = 40};

// With lookup as deep as it can.
constexpr Speculator::Options kDeepest = {.depth = 6, .same_tokens = true, .always = true};

std::unique_ptr<CpuRunner> RunnerOf(const std::string& name, const Room& room,
                                    const WeightOptions& weights = {}) {
  const auto path = kGolden / "models" / name;
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = 2});
  auto model = Model::Load(path, {.weights = weights}, *pool);
  EXPECT_TRUE(model) << model.error().message();
  auto kv = KvCache::Make(model->config(), DType::kF32, room.blocks, CpuAllocator(), room.host_blocks);
  auto states = StateCache::Make(model->config().recurrent, room.states, CpuAllocator());
  EXPECT_TRUE(kv && states);
  return std::make_unique<CpuRunner>(MakeWholeRank(std::move(pool), std::move(*model), std::move(*kv),
                                                   DType::kF32, 200, std::move(*states)));
}

std::unique_ptr<Engine> MakeEngine(const std::string& name, const Room& room, const EngineOptions& options,
                                   std::unique_ptr<Speculator> speculator = nullptr) {
  return EngineInternals::Make(RunnerOf(name, room), options, std::move(speculator));
}

Answers Alone(const std::string& name, const std::vector<Request>& requests) {
  auto engine = MakeEngine(name, kAmple, {.prefix_cache = false});
  return AskAlone(*engine, requests);
}

std::vector<Request> Mixed() {
  std::vector<Request> requests = {RandomRequest(1, 50, 60), RandomRequest(2, 3, 70),
                                   RandomRequest(1, 50, 20), RandomRequest(3, 33, 50),
                                   RandomRequest(4, 1, 40)};
  requests[3].n = 3;
  requests[3].sampling.temperature = 1;
  requests[3].sampling.seed = 7;
  requests[4].n = 2;
  requests[4].sampling.temperature = 1;
  Request beams = RandomRequest(5, 20, 30);
  beams.beam.width = 3;
  beams.n = 2;
  requests.push_back(beams);
  return requests;
}

class RecurrentTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RecurrentTest, AnswersAreThoseOfSequencesLeftAlone) {
  const std::vector<Request> requests = Mixed();
  const Answers alone = Alone(GetParam(), requests);
  for (const int chunk : {5, 16, 512}) {
    auto engine = MakeEngine(GetParam(), kAmple, {.chunk = chunk});
    EXPECT_EQ(Ask(*engine, requests).answers, alone) << "in steps of " << chunk;
    const Outcome again = Ask(*engine, requests);
    EXPECT_EQ(again.answers, alone) << "with cached prefixes";
    EXPECT_GT(again.stats.cached_tokens, 0);
  }
}

TEST_P(RecurrentTest, PreemptionChangesNoAnswer) {
  const std::vector<Request> requests = Mixed();
  const Answers alone = Alone(GetParam(), requests);
  // Too few blocks for all of them, and then too few states.
  for (const Room& room :
       {Room{.blocks = 25, .host_blocks = 60, .states = 20}, {.blocks = 60, .host_blocks = 60, .states = 6}})
    for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap}) {
      auto engine = MakeEngine(GetParam(), room, {.chunk = 13, .preemption = preemption});
      const Outcome outcome = Ask(*engine, requests);
      EXPECT_EQ(outcome.answers, alone);
      if (room.blocks > 25) continue;
      EXPECT_GT(preemption == Preemption::kSwap ? outcome.stats.swaps : outcome.stats.recomputations, 0);
    }
}

TEST_P(RecurrentTest, DraftsChangeNoAnswer) {
  std::vector<Request> requests = Mixed();
  requests[1].sampling.temperature = 0.5f;
  const Answers alone = Alone(GetParam(), requests);
  for (const Room& room : {kAmple, Room{.blocks = 25, .host_blocks = 60, .states = 20},
                           Room{.blocks = 60, .host_blocks = 60, .states = 7}})
    for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap}) {
      auto engine = MakeEngine(GetParam(), room, {.chunk = 40, .preemption = preemption},
                               std::make_unique<Speculator>(kDeepest));
      const Outcome outcome = Ask(*engine, requests);
      EXPECT_EQ(outcome.answers, alone);
      EXPECT_GT(outcome.stats.drafted_tokens, outcome.stats.accepted_tokens);
      const Outcome again = Ask(*engine, requests);
      EXPECT_EQ(again.answers, alone) << "with cached prefixes";
    }
  // The same model with coarser weights drafts, and it has recurrent layers, too.
  WeightOptions coarse;
  coarse.format = WeightFormat::kInt8;
  auto engine = MakeEngine(GetParam(), kAmple, {},
                           std::make_unique<Speculator>(
                               kDeepest, std::make_unique<DraftModel>(RunnerOf(GetParam(), kAmple, coarse))));
  const Outcome outcome = Ask(*engine, requests);
  EXPECT_EQ(outcome.answers, alone);
  EXPECT_GT(outcome.stats.accepted_tokens, 50);
  EXPECT_GT(outcome.stats.drafted_tokens, outcome.stats.accepted_tokens);
}

TEST_P(RecurrentTest, ScoresAndMissingRoomForBeams) {
  auto engine = MakeEngine(GetParam(), {.blocks = 40, .states = 4}, {});
  auto whole = MakeEngine(GetParam(), kAmple, {.chunk = 512});
  const Request text = RandomRequest(6, 90, 1);
  const auto scores = engine->Score(text.prompt, 1), expected = whole->Score(text.prompt, 1);
  ASSERT_TRUE(scores && expected);
  EXPECT_EQ(*scores, *expected);
  Request beams = RandomRequest(5, 20, 30);
  beams.beam.width = 5;
  ASSERT_TRUE(engine->Submit(beams));
  std::string why;
  while (engine->HasWork())
    for (const TokenEvent& event : engine->Step()) why += event.error;
  EXPECT_NE(why.find("5 beams need a state each"), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentTest,
                         ::testing::Values("qwen3_next", "qwen3_5", "qwen3_5_moe", "granitemoehybrid",
                                           "bamba", "nemotron_h"));

}  // namespace
}  // namespace celer::recurrent
