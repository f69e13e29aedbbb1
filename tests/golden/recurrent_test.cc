// Models with recurrent layers in an engine: sequences that are preempted, swapped out, forked, gone on with as beams,
// and begun behind a cached prefix have the same answers, bit for bit, as those that are left alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "device/cpu_allocator.h"
#include "engine/kv/state_cache.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/cpu_runner.h"
#include "golden.h"

namespace celer {
namespace {

struct Room {
  int64_t blocks = 0, host_blocks = 0, states = 0;
};

constexpr Room kAmple = {.blocks = 400, .states = 40};

std::unique_ptr<Engine> MakeEngine(const std::string& name, const Room& room, const EngineOptions& options) {
  const auto path = kGolden / "models" / name;
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = 2});
  auto model = Model::Load(path, {}, *pool);
  EXPECT_TRUE(model) << model.error().message();
  auto kv = KvCache::Make(model->config(), DType::kF32, room.blocks, CpuAllocator(), room.host_blocks);
  auto states = StateCache::Make(model->config().recurrent, room.states, CpuAllocator());
  EXPECT_TRUE(kv && states);
  return EngineInternals::Make(std::make_unique<CpuRunner>(std::move(pool), std::move(*model), std::move(*kv),
                                                           DType::kF32, 200, std::move(*states)),
                               options);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<size_t, int>, Answer>;  // by request and answer

struct Outcome {
  Answers answers;
  EngineStats stats;
};

Outcome Ask(Engine& engine, const std::vector<Request>& requests) {
  std::map<int64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine.Submit(requests[i]);
    EXPECT_TRUE(id) << id.error().message();
    index[*id] = i;
  }
  Outcome outcome;
  while (engine.HasWork()) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_EQ(event.error, "");
      if (event.token == TokenEvent::kNoToken) continue;
      Answer& answer = outcome.answers[{index[event.request], event.answer}];
      answer.tokens.push_back(event.token);
      answer.logprobs.push_back(event.logprob);
    }
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  outcome.stats = engine.stats();
  return outcome;
}

Request RandomRequest(int seed, int length, int64_t tokens) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 11 + i * i * 5 + i) % 48);
  request.max_tokens = tokens;
  request.sampling.logprobs = 0;
  return request;
}

// One after the other, with nothing cached.
Answers Alone(const std::string& name, const std::vector<Request>& requests) {
  auto engine = MakeEngine(name, kAmple, {.prefix_cache = false});
  Answers all;
  for (size_t i = 0; i < requests.size(); ++i)
    for (auto& [key, answer] : Ask(*engine, {requests[i]}).answers) all[{i, key.second}] = std::move(answer);
  return all;
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

INSTANTIATE_TEST_SUITE_P(Models, RecurrentTest, ::testing::Values("qwen3_next", "qwen3_5", "qwen3_5_moe"));

TEST(Recurrent, SpeculationIsRefused) {
  const std::string model = (kGolden / "models/qwen3_5").string();
  const auto lookup = Engine::Load({.model = model, .speculation = {.kind = Speculation::Kind::kLookup}});
  ASSERT_FALSE(lookup);
  EXPECT_NE(lookup.error().message().find("recurrent layers"), std::string::npos) << lookup.error().message();
  const auto draft = Engine::Load({.model = (kGolden / "models/qwen3").string(),
                                   .speculation = {.kind = Speculation::Kind::kDraft, .draft = model}});
  ASSERT_FALSE(draft);
  EXPECT_NE(draft.error().message().find("recurrent layers"), std::string::npos) << draft.error().message();
}

}  // namespace
}  // namespace celer
