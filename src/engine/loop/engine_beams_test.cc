// Beam search in the engine: the blocks that it needs, scheduling as a unit, and beams that are preempted,
// starved or cancelled. What the search finds is tested with tests/golden/beams.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/loop/check_request.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

using Texts = std::map<std::pair<int64_t, int>, std::vector<int32_t>>;  // by request and answer

struct Pool {
  int64_t blocks = 1000, host_blocks = 0;
  int64_t context = 256;
  uint64_t seed = 1;
};

SimulatedRunner::Options RunnerOf(const Pool& pool) {
  SimulatedRunner::Options runner{.model = {.vocab = 600, .seed = pool.seed}};
  runner.info.kv_blocks = pool.blocks;
  runner.info.kv_host_blocks = pool.host_blocks;
  runner.info.kv_bytes_per_token = 64;
  runner.info.context = pool.context;
  return runner;
}

std::unique_ptr<Engine> MakeEngine(const Pool& pool, const EngineOptions& options = {}) {
  return EngineInternals::Make(std::make_unique<SimulatedRunner>(RunnerOf(pool)), options);
}

Request Beams(int width, int64_t prompt, int64_t max_tokens, int32_t first = 74) {
  Request request{.prompt = {first}, .max_tokens = max_tokens};
  while (std::ssize(request.prompt) < prompt)
    request.prompt.push_back(static_cast<int32_t>(request.prompt.size()));
  request.beam.width = width;
  request.n = width;
  return request;
}

void Read(const std::vector<TokenEvent>& events, Texts* texts) {
  for (const TokenEvent& event : events) {
    ASSERT_TRUE(event.error.empty()) << event.error;
    if (event.token != TokenEvent::kNoToken) (*texts)[{event.request, event.answer}].push_back(event.token);
  }
}

// Runs them at once, to their ends. Their ids count from 1.
Texts RunAll(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& request : requests) EXPECT_TRUE(engine.Submit(request));
  Texts texts;
  for (int step = 0; engine.HasWork() && !testing::Test::HasFailure(); ++step) {
    if (step > 20000) {
      ADD_FAILURE() << "they never end";
      break;
    }
    Read(engine.Step(), &texts);
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
  EXPECT_EQ(engine.stats().kv_host_blocks_used, 0);
  return texts;
}

// Both crashed the process once: the beams share blocks, copy-on-write was counted once too often, and there
// was no other sequence to preempt.
TEST(EngineBeams, CopiesOfSharedBlocksFit) {
  for (const auto& [width, blocks] : {std::pair{16, 18}, {8, 10}, {16, 16}, {128, 142}})
    for (uint64_t seed = 1; seed <= 5 && !HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << width << " beams in " << blocks << " blocks, model " << seed);
      const Pool pool{.blocks = blocks, .context = 160, .seed = seed};
      const Request request = Beams(width, 2, 14);
      auto engine = MakeEngine(pool), large = MakeEngine({.context = 160, .seed = seed});
      const Texts texts = RunAll(*engine, {request});
      EXPECT_EQ(std::ssize(texts), width);
      EXPECT_EQ(texts, RunAll(*large, {request}));
    }
}

// Counts the blocks that the slices of a step have.
class CountingRunner : public SimulatedRunner {
 public:
  using SimulatedRunner::SimulatedRunner;
  Status Queue(std::span<const Slice> slices) override {
    std::set<int32_t> blocks;
    for (const Slice& slice : slices) blocks.insert(slice.block_table.begin(), slice.block_table.end());
    most = std::max(most, std::ssize(blocks));
    return SimulatedRunner::Queue(slices);
  }
  int64_t most = 0;
};

// Prompts that end before, at and behind the end of a block, alone in the least pool that holds them.
TEST(EngineBeams, RunInExactlyTheBlocksTheyMayNeedAndAreRefusedWithOneLess) {
  for (const bool cache : {false, true})
    for (const int width : {1, 2, 5})
      for (const int64_t prompt : {1, 15, 16, 17, 31, 32, 33})
        for (const int64_t tokens : {1, 2, 15, 16, 17, 33}) {
          SCOPED_TRACE(testing::Message() << width << " beams, prompt " << prompt << ", " << tokens
                                          << " tokens, cache " << cache);
          const Request request = Beams(width, prompt, tokens);
          const int64_t need = MostBlocks(request);
          auto made = std::make_unique<CountingRunner>(RunnerOf({.blocks = need, .context = 72}));
          const CountingRunner& runner = *made;
          auto engine = EngineInternals::Make(std::move(made), {.chunk = 7, .prefix_cache = cache});
          auto large = MakeEngine({.context = 72});
          EXPECT_EQ(RunAll(*engine, {request}), RunAll(*large, {request}));
          EXPECT_EQ(engine->stats().recomputations, 0);
          if (tokens <= 2) {
            EXPECT_EQ(runner.most, need) << "all of them are used";
          }
          if (need < 2) continue;
          auto small = MakeEngine({.blocks = need - 1, .context = 72});
          ASSERT_TRUE(small->Submit(request));
          const std::vector<TokenEvent> events = small->Step();
          ASSERT_EQ(std::ssize(events), width);
          EXPECT_EQ(events[0].finish, FinishReason::kRefused);
          EXPECT_NE(events[0].error.find("need " + std::to_string(need) + " blocks"), std::string::npos)
              << events[0].error;
          EXPECT_NE(events[0].error.find("the KV has " + std::to_string(need - 1)), std::string::npos);
          EXPECT_FALSE(small->HasWork());
        }
}

// The full blocks of a prompt count once, however many beams there are.
TEST(EngineBeams, ALongPromptIsSharedAlsoAfterPreemption) {
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap})
    for (const bool cache : {false, true}) {
      const Request first = Beams(4, 100, 40, 1), second = Beams(4, 100, 40, 2);
      EXPECT_EQ(MostBlocks(first), 6 + 4 * 3);
      auto engine = MakeEngine({.blocks = 18, .host_blocks = 18},
                               {.chunk = 16, .prefix_cache = cache, .preemption = preemption});
      auto large = MakeEngine({});
      EXPECT_EQ(RunAll(*engine, {first, second, first}), RunAll(*large, {first, second, first}));
      const EngineStats stats = engine->stats();
      EXPECT_GT(preemption == Preemption::kSwap ? stats.swaps : stats.recomputations, 0);
    }
}

// Beams that are recomputed wait for each other, and must not reserve the step's token budget meanwhile.
TEST(EngineBeams, SmallStepsAreEnough) {
  int64_t recomputations = 0;
  for (const int64_t chunk : {1, 2, 3, 4, 6}) {
    std::vector<Request> requests = {Beams(3, 20, 20, 1), Beams(2, 33, 20, 2)};
    for (Request& request : requests) request.priority = 1;
    requests.push_back({.prompt = std::vector<int32_t>(33, 3), .max_tokens = 60});  // goes first, and grows
    auto engine = MakeEngine({.blocks = 8}, {.chunk = chunk, .prefix_cache = false});
    auto large = MakeEngine({});
    EXPECT_EQ(RunAll(*engine, requests), RunAll(*large, requests)) << chunk;
    recomputations += engine->stats().recomputations;
  }
  EXPECT_GT(recomputations, 0);
}

// Searches of low priority among a stream of requests of high priority. A long answer preempts the beams one
// after the other. Beams that aged one by one were admitted before the running answer, and the others after
// it, which crashed the process.
class Starved : public testing::TestWithParam<std::tuple<Preemption, int>> {};

TEST_P(Starved, BeamsAgeAsOne) {
  const auto [preemption, clients] = GetParam();
  const int64_t blocks = clients == 1 ? 16 : 24;
  auto engine = MakeEngine({.blocks = blocks, .host_blocks = 24},
                           {.chunk = 32, .mixed_chunk = 8, .preemption = preemption});
  EngineInternals::SetStarvationSteps(*engine, 100);
  std::vector<Request> searches;
  for (int i = 0; i < 3; ++i) {
    searches.push_back(Beams(4, 20 + i, 40, i));
    searches.back().priority = 5;
    ASSERT_TRUE(engine->Submit(searches.back()));
  }
  Texts texts;
  std::set<int64_t> urgent;
  int32_t next = 0;
  for (int step = 0; texts.size() < 12 && step < 20000 && !HasFailure(); ++step) {
    while (std::ssize(urgent) < clients) {
      Request request{.prompt = std::vector<int32_t>(static_cast<size_t>(10 + next % 30), next % 600),
                      .max_tokens = clients == 1 ? 160 : 20 + next % 20};
      ++next;
      const auto id = engine->Submit(request);
      ASSERT_TRUE(id);
      urgent.insert(*id);
    }
    for (const TokenEvent& event : engine->Step()) {
      if (event.request > 3) {
        if (event.last) urgent.erase(event.request);
      } else if (event.token != TokenEvent::kNoToken) {
        texts[{event.request, event.answer}].push_back(event.token);
      }
    }
    ASSERT_EQ(EngineInternals::CheckInvariants(*engine), "") << step;
  }
  auto large = MakeEngine({});
  EXPECT_EQ(texts, RunAll(*large, searches));
}
INSTANTIATE_TEST_SUITE_P(Ways, Starved,
                         testing::Combine(testing::Values(Preemption::kSwap, Preemption::kRecompute),
                                          testing::Values(1, 12)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == Preemption::kSwap ? "Swap"
                                                                                           : "Recompute") +
                                  std::to_string(std::get<1>(test.param));
                         });

// They run in a step of their own. Later requests of higher priority must not starve them.
TEST(EngineBeams, MoreThanAStepHasTokensGetTheirTurn) {
  auto engine = MakeEngine({}, {.chunk = 8});
  EngineInternals::SetStarvationSteps(*engine, 50);
  Request search = Beams(12, 20, 30);
  search.priority = 1;
  ASSERT_TRUE(engine->Submit(search));
  Texts texts;
  int64_t urgent = 0;
  for (int step = 0; texts.empty() && step < 5000; ++step) {
    if (urgent == 0) {
      const auto id = engine->Submit({.prompt = {1, 2, 3}, .max_tokens = 20});
      ASSERT_TRUE(id);
      urgent = *id;
    }
    for (const TokenEvent& event : engine->Step()) {
      if (event.request == urgent && event.last) urgent = 0;
      if (event.request == 1) texts[{1, event.answer}].push_back(event.token);
    }
  }
  EXPECT_EQ(texts.size(), 12u);
}

TEST(EngineBeams, EndWhileTheyAreSwappedOut) {
  auto engine = MakeEngine({.blocks = 12, .host_blocks = 40}, {.preemption = Preemption::kSwap});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Submit(Beams(4, 20, 28, i)));
  for (int step = 0; step < 500 && engine->stats().swapped == 0; ++step) engine->Step();
  ASSERT_GT(engine->stats().kv_host_blocks_used, 0);
  for (int64_t id = 1; id <= 3; ++id) engine->Cancel(id);
  EXPECT_EQ(EngineInternals::CheckInvariants(*engine), "");
  EXPECT_EQ(engine->stats().kv_host_blocks_used, 0);
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine->Step().size(), 12u);
  EXPECT_FALSE(engine->HasWork());
}

// A pool that is smaller than the context, which no loaded model has. Only the request that outgrows it ends.
TEST(EngineBeams, WhatOutgrowsTheKvIsRefusedAndOthersGoOn) {
  auto engine = MakeEngine({.blocks = 3, .context = 256});
  const auto grows = engine->Submit({.prompt = {1, 2, 3}, .max_tokens = 100});
  const auto fits = engine->Submit({.prompt = {4, 5, 6}, .max_tokens = 30});
  const auto too_long = engine->Submit({.prompt = std::vector<int32_t>(60, 7), .max_tokens = 1});
  ASSERT_TRUE(grows && fits && too_long);
  EXPECT_FALSE(engine->Score(std::vector<int32_t>(60, 8), 1));
  std::map<int64_t, TokenEvent> ends;
  for (int step = 0; engine->HasWork() && step < 1000; ++step)
    for (const TokenEvent& event : engine->Step())
      if (event.last) ends[event.request] = event;
  EXPECT_EQ(ends[*grows].finish, FinishReason::kRefused);
  EXPECT_NE(ends[*grows].error.find("the 3 blocks of 16 tokens"), std::string::npos) << ends[*grows].error;
  EXPECT_EQ(ends[*too_long].finish, FinishReason::kRefused);
  EXPECT_EQ(ends[*fits].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

// The logits of the last beam are not finite from its tenth position on. Remembers what is cleared.
class PoisonedBeam : public SimulatedRunner {
 public:
  using SimulatedRunner::SimulatedRunner;
  Status Queue(std::span<const Slice> slices) override {
    poisoned_ = slices.size() > 1 && slices.back().position >= 10;
    if (poisoned_) written = slices.back().block_table.back();
    return SimulatedRunner::Queue(slices);
  }
  Result<StepOutput> Take() override {
    CELER_ASSIGN(StepOutput output, SimulatedRunner::Take());
    logits_.assign(output.logits.begin(), output.logits.end());
    if (poisoned_) logits_.back() = std::nanf("");
    output.logits = logits_;
    return output;
  }
  Status ClearBlocks(std::span<const int32_t> blocks) override {
    cleared.insert(blocks.begin(), blocks.end());
    return SimulatedRunner::ClearBlocks(blocks);
  }
  int32_t written = -1;
  std::set<int32_t> cleared;

 private:
  bool poisoned_ = false;
  std::vector<float> logits_;
};

TEST(EngineBeams, NumbersThatAreNotFiniteLeaveNoBlockBehind) {
  auto made = std::make_unique<PoisonedBeam>(RunnerOf({.blocks = 20}));
  PoisonedBeam& runner = *made;
  auto engine = EngineInternals::Make(std::move(made), {});
  ASSERT_TRUE(engine->Submit(Beams(4, 5, 20)));
  std::vector<TokenEvent> events;
  while (engine->HasWork()) events = engine->Step();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_TRUE(runner.cleared.contains(runner.written)) << "block " << runner.written;
  EXPECT_EQ(runner.cleared.size(), 4u) << "one for each beam";
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

}  // namespace
}  // namespace celer
