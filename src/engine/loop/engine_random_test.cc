// A stress test of the engine: random requests are submitted, cancelled, expire, share prefixes, fork, use
// beam search, starve, and preempt each other in pools that are much too small. Nothing may leak, no request
// may starve, and every text must be the one that an engine with room for all would have written.
//   CELER_RANDOM_SEEDS=1000-5000 celer_engine_test --gtest_filter='RandomLoad*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "engine/loop/adapters_test_util.h"
#include "engine/loop/check_request.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;

struct Answers {
  std::map<int, std::vector<int32_t>> tokens;
  std::map<int, FinishReason> finish;
  std::vector<float> embedding;
  bool last = false;
  bool operator==(const Answers&) const = default;
};

void Read(const std::vector<TokenEvent>& events, std::map<int64_t, Answers>* all) {
  for (const TokenEvent& event : events) {
    Answers& answers = (*all)[event.request];
    ASSERT_FALSE(answers.last) << "an event after the last one";
    ASSERT_NE(event.finish, FinishReason::kError) << event.error;
    if (event.token != TokenEvent::kNoToken) answers.tokens[event.answer].push_back(event.token);
    if (event.finish != FinishReason::kNone) {
      ASSERT_FALSE(answers.finish.contains(event.answer)) << "an answer ends twice";
      answers.finish[event.answer] = event.finish;
    }
    if (!event.embedding.empty()) answers.embedding = event.embedding;
    answers.last = event.last;
  }
}

std::unique_ptr<Engine> MakeEngine(const HashModel& model, int64_t context, int64_t blocks,
                                   int64_t host_blocks, bool ahead, const EngineOptions& options,
                                   std::unique_ptr<Speculator> speculator = nullptr, int64_t states = 0) {
  SimulatedRunner::Options runner{.model = model};
  runner.info.config.vocab = model.vocab;
  runner.info.config.hidden = 8;
  runner.info.kv_blocks = blocks;
  runner.info.kv_host_blocks = host_blocks;
  runner.info.state_slots = states;
  runner.info.kv_bytes_per_token = 64;
  runner.info.context = context;
  runner.runs_ahead = ahead;
  return EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(runner)), options,
                               std::move(speculator));
}

class Requests {
 public:
  Requests(uint32_t seed, const HashModel& model, int64_t context)
      : random_(seed), model_(model), context_(static_cast<int>(context)) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  Request Next() {
    Request request;
    // A few shared prefixes, as system prompts and earlier turns are.
    const int family = Below(4), shared = Below(context_ * 5 / 8), own = 1 + Below(context_ / 5);
    for (int i = 0; i < shared; ++i) request.prompt.push_back((family * 7 + i * i) % Vocab());
    for (int i = 0; i < own; ++i) request.prompt.push_back(Below(Vocab()));
    request.max_tokens = 1 + Below(context_ / 4);
    request.min_tokens = Below(3) == 0 ? Below(static_cast<int>(request.max_tokens) + 1) : 0;
    if (Below(2) == 0) request.stop_tokens = {Below(Vocab()), Below(Vocab())};
    request.sampling.temperature = Below(2) == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random_();
    if (Below(4) == 0) request.sampling.frequency_penalty = 0.5f;
    if (Below(6) == 0) request.sampling.logprobs = Below(3);
    if (Below(8) == 0) request.prompt_logprobs = Below(2);
    request.n = Below(3) == 0 ? 1 + Below(4) : 1;
    if (Below(8) == 0) request.best_of = request.n + Below(3);
    if (Below(4) == 0) {
      if (Below(2) == 0) request.prompt.resize(1 + Below(20), 3);
      request = {.prompt = request.prompt,
                 .max_tokens = 1 + Below(context_ / 3),
                 .stop_tokens = request.stop_tokens,
                 .prompt_logprobs = Below(8) == 0 ? 0 : -1};
      request.beam.width = 1 + Below(Below(2) == 0 ? 3 : 12);
      request.beam.early_stopping = static_cast<BeamSearch::EarlyStopping>(Below(3));
      request.n = 1 + Below(request.beam.width);
    }
    if (Below(8) == 0) {
      request = {.prompt = request.prompt};
      request.pooling = Below(2) == 0 ? Pooling::kMean : Pooling::kLast;
    }
    request.priority = Below(3);
    // Mixes of equal content share what was computed, others do not.
    if (Below(2) == 0) request.lora = mixes_[static_cast<size_t>(Below(static_cast<int>(mixes_.size())))];
    if (Below(4) == 0) request.cache_salt = std::string(1, static_cast<char>('a' + Below(2)));
    return request;
  }

  // Somewhere in its answer, if it is one answer: `answers` keeps the rest.
  bool Resume(Request* request, Answers* answers) {
    if (request->n != 1 || request->best_of > 1 || request->beam.width > 0 ||
        request->pooling != Pooling::kNone)
      return false;
    std::vector<int32_t>& tokens = answers->tokens[0];
    if (tokens.size() < 2) return false;
    const auto cut = tokens.begin() + 1 + Below(static_cast<int>(tokens.size()) - 1);
    request->resumed.assign(tokens.begin(), cut);
    tokens.erase(tokens.begin(), cut);
    return true;
  }

  std::mt19937& random() { return random_; }

 private:
  static std::vector<std::shared_ptr<const LoraMix>> MakeMixes() {
    const auto adapter = [](const char* name, const char* content) {
      return MakeEmptyLora({.name = name, .path = "", .content = content});
    };
    const auto a = adapter("a", "11"), again = adapter("again", "11"), b = adapter("b", "22");
    std::vector<std::shared_ptr<const LoraMix>> mixes = {nullptr};
    for (const std::vector<LoraUse>& uses :
         {std::vector<LoraUse>{{a, 1}}, {{again, 1}}, {{a, 0.5f}}, {{b, 1}}, {{a, 1}, {b, 1}}})
      mixes.push_back(*LoraMix::Make(uses));
    return mixes;
  }
  const std::vector<std::shared_ptr<const LoraMix>> mixes_ = MakeMixes();

  int Vocab() const { return static_cast<int>(model_.vocab); }
  std::mt19937 random_;
  HashModel model_;
  int context_;
};

// Another engine, which has computed the prompt, gives its blocks to this one before the request comes. What is held and not
// released is given up for sequences.
class Transfers {
 public:
  Transfers(uint32_t seed, std::unique_ptr<Engine> peer) : random_(seed), peer_(std::move(peer)) {}

  void Before(const Request& asked, Engine& engine) {
    if (random_() % 4 != 0 || asked.pooling != Pooling::kNone || asked.prompt_logprobs >= 0) return;
    Request request{.prompt = asked.prompt,
                    .max_tokens = 1,
                    .cache_salt = asked.cache_salt,
                    .lora = asked.lora.value_or(nullptr)};
    request.prompt.insert(request.prompt.end(), asked.resumed.begin(), asked.resumed.end());
    ASSERT_TRUE(peer_->Submit(request));
    while (peer_->HasWork()) peer_->Step();
    const auto there = EngineInternals::HoldPrefix(*peer_, request);
    const auto here = EngineInternals::HoldPrefix(engine, request);
    const int64_t each = *EngineInternals::TransferBlockBytes(engine);
    int64_t first = std::ssize(here.blocks), hold = here.hold;
    while (first < std::ssize(there.blocks)) {
      const int64_t count = std::min<int64_t>(1 + random_() % 3, std::ssize(there.blocks) - first);
      std::vector<std::byte> bytes(static_cast<size_t>(count * each));
      ASSERT_TRUE(EngineInternals::ReadHeld(*peer_, there.hold, first, count, bytes));
      const Result<int64_t> stored = EngineInternals::StoreBlocks(engine, request, first, bytes, &hold);
      ASSERT_TRUE(stored) << stored.error().message();
      blocks += *stored;
      first += *stored;
      if (*stored < count) break;
    }
    EngineInternals::ReleaseHold(*peer_, there.hold);
    if (random_() % 2 == 0)
      EngineInternals::ReleaseHold(engine, hold);
    else
      holds_.push_back(hold);
  }
  void ReleaseAll(Engine& engine) {
    for (const int64_t hold : holds_) EngineInternals::ReleaseHold(engine, hold);
  }
  int64_t blocks = 0;

 private:
  std::mt19937 random_;
  std::unique_ptr<Engine> peer_;
  std::vector<int64_t> holds_;
};

struct Seen {
  int64_t finished = 0, refused = 0, swaps = 0, recomputations = 0, copies = 0, found = 0, evictions = 0;
  int64_t drafted = 0, accepted = 0, beams = 0, expired = 0, resumed = 0, transferred = 0;
};

void RunEngine(uint32_t seed, Seen* seen) {
  constexpr int kSteps = 5000, kAtOnce = 10;
  // Every fourth engine speculates, as deep as it can. Its texts repeat themselves, so that some drafts are
  // accepted.
  const bool drafts = seed % 4 == 0;
  const HashModel model{.vocab = 48, .seed = seed, .order = drafts ? 1 : 0};
  constexpr int64_t kContexts[] = {40, 64, 100, 160};
  const int64_t context = kContexts[seed / 4 % 4];
  Requests requests(seed, model, context);
  const EngineOptions options{.chunk = 1 + requests.Below(40),
                              .mixed_chunk = requests.Below(3) == 0 ? 4 : 0,
                              .prefix_cache = requests.Below(4) != 0,
                              .preemption = static_cast<Preemption>(requests.Below(3))};
  // The longest text just fits, and three beams of it sometimes.
  const int64_t blocks = KvBlocksFor(context) + requests.Below(25), host_blocks = requests.Below(3) * 10;
  // Every third one has recurrent layers.
  const int64_t states = seed % 3 == 0 ? 2 + requests.Below(14) : 0;
  auto engine = MakeEngine(model, context, blocks, host_blocks, requests.Below(2) == 0, options,
                           drafts ? std::make_unique<Speculator>(
                                        Speculator::Options{.depth = 1 + requests.Below(15), .always = true})
                                  : nullptr,
                           states);
  auto unbounded = MakeEngine(model, context, 4000, 0, false, {.chunk = 512, .prefix_cache = false});
  Transfers transfers(seed, MakeEngine(model, context, 4000, 0, false, {.chunk = 512}));
  // Some are starved all the time.
  EngineInternals::SetStarvationSteps(*engine, requests.Below(2) == 0 ? 10 + requests.Below(200) : 5000);

  std::map<int64_t, Answers> got, expected;
  std::map<int64_t, bool> cancelled, beams, too_large;
  std::vector<int64_t> alive;
  // Deadlines are far away by the clock, and pass one second with each step.
  const Clock::time_point hour = Clock::now() + std::chrono::hours(100);
  const auto settle = [&](int64_t id) {
    const Answers& answers = got[id];
    if (!answers.last) return false;
    const auto ended = [&](FinishReason reason) {  // an answer did, perhaps not all
      return std::any_of(answers.finish.begin(), answers.finish.end(),
                         [&](const auto& one) { return one.second == reason; });
    };
    EXPECT_EQ(ended(FinishReason::kRefused), too_large[id]) << "request " << id;
    if (ended(FinishReason::kRefused)) {
      ++seen->refused;
    } else if (!cancelled[id] && !ended(FinishReason::kDeadline)) {
      EXPECT_EQ(answers, expected[id]) << "request " << id;
      ++seen->finished;
      seen->beams += beams[id] ? 1 : 0;
    } else {
      seen->expired += ended(FinishReason::kDeadline) ? 1 : 0;
      for (const auto& [answer, tokens] : answers.tokens) {
        const auto& whole = expected[id].tokens[answer];
        EXPECT_TRUE(tokens.size() <= whole.size() && std::equal(tokens.begin(), tokens.end(), whole.begin()))
            << "request " << id << " before it was cancelled";
      }
    }
    cancelled.erase(id);
    got.erase(id);
    expected.erase(id);
    return true;
  };
  int idle = 0;
  const auto next = [&](int step) {
    const EngineStats before = engine->stats();
    EngineInternals::ExpireDeadlines(*engine, hour + std::chrono::seconds(step));
    ASSERT_NO_FATAL_FAILURE(Read(engine->Step(), &got));
    ASSERT_FALSE(engine->fault()) << engine->fault()->message();
    ASSERT_EQ(EngineInternals::CheckInvariants(*engine), "") << "step " << step;
    // Beams are swapped in by a step that computes nothing. No other step is empty.
    const EngineStats after = engine->stats();
    const bool idles = before.running + before.waiting > 0 && after.steps == before.steps;
    if (after.finished > before.finished) idle = 0;
    idle = idles ? idle + 1 : 0;
    ASSERT_LT(idle, 2) << "step " << step << ": no sequence makes progress";
  };
  for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
    if (static_cast<int>(alive.size()) < kAtOnce && requests.Below(3) == 0) {
      Request request = requests.Next();
      auto alone = unbounded->Submit(request);
      ASSERT_TRUE(alone) << alone.error().message();
      std::map<int64_t, Answers> told;
      while (unbounded->HasWork()) ASSERT_NO_FATAL_FAILURE(Read(unbounded->Step(), &told));
      Answers whole = told[*alone];
      if (requests.Below(4) == 0) seen->resumed += requests.Resume(&request, &whole);
      if (requests.Below(10) == 0) request.deadline = hour + std::chrono::seconds(step + requests.Below(60));
      if (states == 0 && options.prefix_cache) {
        ASSERT_NO_FATAL_FAILURE(transfers.Before(request, *engine));
      }
      auto id = engine->Submit(request);
      ASSERT_TRUE(id) << id.error().message();
      alive.push_back(*id);
      beams[*id] = request.beam.width > 0;
      request.max_tokens = std::min(request.max_tokens, context - std::ssize(request.prompt) + 1);
      too_large[*id] =
          beams[*id] &&
          (MostBlocks(request) > blocks ||
           (states > 0 && !NeverFitsWithStates(request, engine->info(), states - states / 2).empty()));
      expected[*id] = std::move(whole);
    }
    if (!alive.empty() && requests.Below(40) == 0) {
      const int64_t id = alive[static_cast<size_t>(requests.Below(static_cast<int>(alive.size())))];
      engine->Cancel(id);
      cancelled[id] = true;
      idle = 0;  // it may have been the one that came back
    }
    if (requests.Below(200) == 0) {  // a text that is scored meanwhile
      std::vector<int32_t> text(static_cast<size_t>(2 + requests.Below(static_cast<int>(context) - 2)));
      for (int32_t& token : text) token = requests.Below(static_cast<int>(model.vocab));
      const int64_t first = 1 + requests.Below(static_cast<int>(text.size()) - 1);
      const auto scores = engine->Score(text, first), reference = unbounded->Score(text, first);
      ASSERT_TRUE(scores) << scores.error().message();
      EXPECT_EQ(*scores, *reference);
      idle = 0;
    }
    ASSERT_NO_FATAL_FAILURE(next(step));
    std::erase_if(alive, settle);
  }
  for (int step = kSteps; engine->HasWork() && step < kSteps + 20000 && !testing::Test::HasFailure(); ++step)
    ASSERT_NO_FATAL_FAILURE(next(step));
  std::erase_if(alive, settle);
  EXPECT_TRUE(alive.empty()) << alive.size() << " requests never ended";
  transfers.ReleaseAll(*engine);
  seen->transferred += transfers.blocks;
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.kv_blocks_used, 0);
  EXPECT_EQ(stats.kv_host_blocks_used, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  seen->swaps += stats.swaps;
  seen->recomputations += stats.recomputations;
  seen->copies += stats.copied_blocks;
  seen->found += stats.cached_tokens;
  seen->evictions += stats.evictions;
  seen->drafted += stats.drafted_tokens;
  seen->accepted += stats.accepted_tokens;
}

// 40 engines of 5,000 steps.
TEST(RandomLoad, NothingLeaksAndNothingChanges) {
  Seen seen;
  unsigned first = 1, last = 40;
  const char* const seeds = std::getenv("CELER_RANDOM_SEEDS");
  ASSERT_TRUE(!seeds || std::sscanf(seeds, "%u-%u", &first, &last) == 2) << "expected FIRST-LAST";
  for (uint32_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunEngine(seed, &seen);
  }
  if (last - first < 39) return;
  EXPECT_GT(seen.finished, 10000);
  EXPECT_GT(seen.refused, 100);
  EXPECT_GT(seen.swaps, 1000);
  EXPECT_GT(seen.recomputations, 1000);
  EXPECT_GT(seen.copies, 10000);
  EXPECT_GT(seen.found, 10000);
  EXPECT_GT(seen.evictions, 1000);
  EXPECT_GT(seen.beams, 1000);
  EXPECT_GT(seen.expired, 100);
  EXPECT_GT(seen.resumed, 500);
  EXPECT_GT(seen.transferred, 1000);
  EXPECT_GT(seen.accepted, 1000);
  EXPECT_GT(seen.drafted, seen.accepted + 1000);
}

}  // namespace
}  // namespace celer
