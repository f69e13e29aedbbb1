// Expensive token masks: they delay their own answer, and no other.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/split_mix.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

constexpr int64_t kVocab = 24;

struct World {
  bool ahead = false;
  std::unique_ptr<Speculator> speculator = {};
};

std::unique_ptr<SimulatedRunner> Simulated(bool ahead) {
  SimulatedRunner::Options options{.model = {.vocab = kVocab, .order = 1}};
  options.info.kv_blocks = 200;
  options.info.context = 256;
  options.runs_ahead = ahead;
  return std::make_unique<SimulatedRunner>(std::move(options));
}

std::unique_ptr<Engine> Make(World world = {}) {
  return EngineInternals::Make(Simulated(world.ahead), {.chunk = 16}, std::move(world.speculator));
}

std::unique_ptr<Speculator> Drafts(bool same_tokens) {
  return std::make_unique<Speculator>(
      Speculator::Options{.depth = 4, .same_tokens = same_tokens, .always = true},
      std::make_unique<DraftModel>(Simulated(false)));
}

// Closed, until it is opened for good.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Some tokens after each text, which can be told at once (`cost` 0), or after so many steps of work.
class Slow : public TokenMask {
 public:
  struct Options {
    uint64_t cost = 1'000'000'000;
    std::shared_ptr<Gate> gate = {};           // that the work waits for
    int refused_after = 1 << 30;               // tokens
    std::shared_ptr<uint64_t> on_engine = {};  // steps spent on the engine's thread
    std::thread::id engine = std::this_thread::get_id();
  };
  explicit Slow(Options options) : options_(std::move(options)) {}

  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<Slow>(*this); }
  Result<Prepared> Prepare(uint64_t max_work) override {
    const uint64_t work =
        options_.cost > 0 && options_.cost < 1000 ? SplitMix64(text_) % options_.cost * 1000 : options_.cost;
    if (ready_ || work == 0) return Prepared{};
    const bool here = std::this_thread::get_id() == options_.engine;
    if (here && options_.on_engine) *options_.on_engine += std::min(max_work, work);
    if (work > max_work) return Prepared{.ready = false, .work = max_work};
    EXPECT_FALSE(here && work > 1'000'000) << "the engine's thread works for " << work << " steps";
    if (options_.gate) options_.gate->Pass();
    if (tokens_ >= options_.refused_after) return Error::Unsupported("rule 'x' is too ambiguous");
    ready_ = true;
    return Prepared{.work = work};
  }
  void Allow(std::span<uint32_t> bits) override {
    EXPECT_TRUE(ready_ || options_.cost < 1000);
    bits[0] = static_cast<uint32_t>(SplitMix64(text_ + 1) | 1u) & ((1u << kVocab) - 1);
  }
  void Accept(int32_t token) override {
    text_ = SplitMix64(text_ * kVocab + static_cast<uint64_t>(token));
    ++tokens_;
    ready_ = false;
  }

 private:
  Options options_;
  uint64_t text_ = 1;
  int tokens_ = 0;
  bool ready_ = false;
};

Request Ask(int seed, int64_t max_tokens, std::shared_ptr<const TokenMask> mask = {}) {
  Request request{.prompt = {1, 2, static_cast<int32_t>(seed % kVocab), 5}, .max_tokens = max_tokens};
  request.sampling.temperature = seed % 3 == 0 ? 0.0f : 1.0f;
  request.sampling.seed = static_cast<uint64_t>(seed);
  request.mask = std::move(mask);
  return request;
}

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<int64_t, int>, Answer>;

void Add(const std::vector<TokenEvent>& events, Answers* answers) {
  for (const TokenEvent& event : events) {
    Answer& answer = (*answers)[{event.request, event.answer}];
    if (event.token != TokenEvent::kNoToken) answer.tokens.push_back(event.token);
    answer.finish = event.finish;
    answer.error = event.error;
  }
}

Answers RunAll(Engine& engine, std::vector<Request> requests) {
  Answers answers;
  for (Request& request : requests) EXPECT_TRUE(engine.Submit(std::move(request)));
  while (engine.HasWork()) Add(engine.Step(), &answers);
  return answers;
}

TEST(EngineMasks, OthersStepWhileAMaskIsNotReady) {
  const auto gate = std::make_shared<Gate>();
  auto engine = Make();
  const auto slow = engine->Submit(Ask(1, 5, std::make_shared<Slow>(Slow::Options{.gate = gate})));
  const auto victim = engine->Submit(Ask(2, 30));
  ASSERT_TRUE(slow && victim);
  Answers answers;
  for (int step = 0; step < 32; ++step) Add(engine->Step(), &answers);
  // One step for both prompts, and a token in each step from then on.
  EXPECT_EQ((answers[{*victim, 0}].tokens.size()), 30u);
  EXPECT_TRUE((answers[{*slow, 0}].tokens.empty()));
  EXPECT_TRUE(engine->HasWork());
  EXPECT_EQ(engine->stats().deferred_masks, 1);
  gate->Open();
  while (engine->HasWork()) Add(engine->Step(), &answers);
  auto quick = Make();
  const Answers alone = RunAll(*quick, {Ask(1, 5, std::make_shared<Slow>(Slow::Options{.cost = 0}))});
  EXPECT_EQ((answers[{*slow, 0}]), alone.begin()->second);
  EXPECT_EQ(alone.begin()->second.tokens.size(), 5u);
  EXPECT_EQ(engine->stats().deferred_masks, 5);
}

TEST(EngineMasks, TextsDoNotDependOnWhenMasksAreReady) {
  // Work of up to a million steps by the text: some masks are ready at once, others are not.
  const auto requests = [](uint64_t cost) {
    std::vector<Request> all;
    for (int i = 0; i < 12; ++i) {
      all.push_back(Ask(i, 20, i % 4 == 3 ? nullptr : std::make_shared<Slow>(Slow::Options{.cost = cost})));
      all.back().n = 1 + i % 2;
    }
    return all;
  };
  auto quick = Make();
  const Answers expected = RunAll(*quick, requests(0));
  EXPECT_EQ(quick->stats().deferred_masks, 0);
  ASSERT_EQ(expected.size(), 18u);
  for (const bool ahead : {false, true}) {
    auto plain = Make({.ahead = ahead});
    EXPECT_EQ(RunAll(*plain, requests(999)), expected);
    EXPECT_GT(plain->stats().deferred_masks, 0);
    auto lookup =
        Make({.ahead = ahead,
              .speculator = std::make_unique<Speculator>(Speculator::Options{.depth = 4, .always = true})});
    EXPECT_EQ(RunAll(*lookup, requests(999)), expected);
    EXPECT_GT(lookup->stats().accepted_tokens, 0);
    auto draft = Make({.ahead = ahead, .speculator = Drafts(true)});
    EXPECT_EQ(RunAll(*draft, requests(999)), expected);
    EXPECT_GT(draft->stats().accepted_tokens, 0);
  }
}

TEST(EngineMasks, WorkOnTheEnginesThreadIsBounded) {
  const auto gate = std::make_shared<Gate>();
  const auto spent = std::make_shared<uint64_t>(0);
  auto engine = Make();
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(
        engine->Submit(Ask(i, 5, std::make_shared<Slow>(Slow::Options{.gate = gate, .on_engine = spent}))));
  const auto victim = engine->Submit(Ask(2, 10));
  Answers answers;
  for (int step = 0; step < 40; ++step) {
    const uint64_t before = *spent;
    Add(engine->Step(), &answers);
    EXPECT_LE(*spent - before, 300'000u) << step;
  }
  EXPECT_LE(*spent, 600'000u);  // and not again for those that have not been prepared yet
  EXPECT_EQ((answers[{*victim, 0}].tokens.size()), 10u);
  gate->Open();
}

TEST(EngineMasks, ARefusedMaskEndsItsRequestAlone) {
  auto engine = Make();
  const auto refused = engine->Submit(Ask(1, 20, std::make_shared<Slow>(Slow::Options{.refused_after = 3})));
  const auto at_once =
      engine->Submit(Ask(1, 20, std::make_shared<Slow>(Slow::Options{.cost = 2000, .refused_after = 0})));
  const auto other = engine->Submit(Ask(2, 20, std::make_shared<Slow>(Slow::Options{.cost = 2000})));
  ASSERT_TRUE(refused && at_once && other);
  Answers answers;
  while (engine->HasWork()) Add(engine->Step(), &answers);
  EXPECT_EQ((answers[{*refused, 0}].tokens.size()), 3u);
  EXPECT_EQ((answers[{*at_once, 0}].tokens.size()), 0u);
  for (const int64_t id : {*refused, *at_once}) {
    EXPECT_EQ((answers[{id, 0}].finish), FinishReason::kConstraint);
    EXPECT_EQ((answers[{id, 0}].error), "rule 'x' is too ambiguous");
  }
  EXPECT_EQ((answers[{*other, 0}].finish), FinishReason::kLength);
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  EXPECT_FALSE(engine->fault());
}

TEST(EngineMasks, ARequestCanEndWhileItsMaskIsPrepared) {
  const auto gate = std::make_shared<Gate>();
  auto engine = Make();
  Answers answers;
  const auto slow = engine->Submit(Ask(1, 5, std::make_shared<Slow>(Slow::Options{.gate = gate})));
  Request late = Ask(2, 5, std::make_shared<Slow>(Slow::Options{.gate = gate}));
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  const auto too_late = engine->Submit(std::move(late));
  ASSERT_TRUE(slow && too_late);
  Add(engine->Step(), &answers);
  engine->Cancel(*slow);
  while (engine->HasWork()) Add(engine->Step(), &answers);
  EXPECT_EQ((answers[{*slow, 0}].finish), FinishReason::kCancelled);
  EXPECT_EQ((answers[{*too_late, 0}].finish), FinishReason::kDeadline);
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  gate->Open();  // the engine waits for what it has begun
}

TEST(MaskWorkers, WhoHasHadLeastGoesFirst) {
  const auto gate = std::make_shared<Gate>();
  std::mutex mutex;
  std::vector<int> order;
  class Noted : public TokenMask {
   public:
    explicit Noted(std::function<void()> note) : note_(std::move(note)) {}
    std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<Noted>(*this); }
    Result<Prepared> Prepare(uint64_t) override {
      note_();
      return Prepared{.work = 7};
    }
    void Allow(std::span<uint32_t>) override {}
    void Accept(int32_t) override {}

   private:
    std::function<void()> note_;
  };
  MaskWorkers workers(1);
  std::vector<std::shared_ptr<TokenMask>> masks = {std::make_shared<Noted>([&] { gate->Pass(); })};
  std::vector<std::shared_ptr<MaskWorkers::Job>> jobs = {workers.Post(masks[0], 0)};
  for (const int spent : {500, 100, 300}) {
    masks.push_back(std::make_shared<Noted>([&, spent] {
      const std::lock_guard lock(mutex);
      order.push_back(spent);
    }));
    jobs.push_back(workers.Post(masks.back(), static_cast<uint64_t>(spent)));
  }
  // The queued mask of an answer that has ended is dropped.
  jobs.push_back(workers.Post(std::make_shared<Noted>([&] { ADD_FAILURE(); }), 400));
  gate->Open();
  for (const auto& job : jobs)
    while (!job->done.load(std::memory_order_acquire)) workers.WaitForAny(std::chrono::milliseconds(10));
  EXPECT_EQ(order, (std::vector<int>{100, 300, 500}));
  EXPECT_EQ(jobs[1]->work, 7u);
  EXPECT_EQ(jobs[4]->work, 0u);
}

}  // namespace
}  // namespace celer
