// Requests in flight when the device fails: a runner that fails in the middle of its work.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/loop/engine_internals.h"

namespace celer {
namespace {

// Chooses token 1 after everything, until it has run `steps` steps.
class FailingRunner : public Runner {
 public:
  explicit FailingRunner(int steps, bool ahead) : steps_(steps), ahead_(ahead) {
    info_.config.vocab = 8;
    info_.config.max_positions = 64;
    info_.context = 64;
    info_.kv_blocks = 8;
    info_.device = "failing";
  }
  const Info& info() const override { return info_; }
  Status Queue(std::span<const Slice> slices) override {
    queued_.emplace_back(slices.begin(), slices.end());
    return {};
  }
  Result<StepOutput> Take() override {
    if (steps_-- == 0) return Error::Device("the device fell off the bus");
    StepOutput output;
    for (const Slice& slice : queued_.front())
      if (slice.sampler) output.choices.push_back({.token = 1, .logprob = 0, .top = {}});
    queued_.erase(queued_.begin());
    return output;
  }
  void DropQueued() override { queued_.clear(); }
  bool RunsAhead(std::span<const Slice> slices) const override {
    return ahead_ &&
           std::all_of(slices.begin(), slices.end(), [](const Slice& s) { return s.sampler != nullptr; });
  }
  Status CopyBlocks(std::span<const BlockCopy>) override { return {}; }
  Status SwapOut(std::span<const BlockCopy>) override { return {}; }
  Status SwapIn(std::span<const BlockCopy>) override { return {}; }
  Status ClearBlocks(std::span<const int32_t>) override { return {}; }
  std::vector<OperatorWork> Work(const StepShape&) const override { return {}; }
  void set_profile(OpProfile*) override {}
  void set_watch(LayerWatch) override {}

 private:
  Info info_;
  int steps_;
  bool ahead_;
  std::vector<std::vector<Slice>> queued_;
};

class EngineFault : public testing::TestWithParam<bool> {};

TEST_P(EngineFault, EndsEveryRequestWithTheSentenceAndTakesNoOther) {
  auto engine = EngineInternals::Make(std::make_unique<FailingRunner>(3, GetParam()), {.chunk = 4});
  const Request request{.prompt = {1, 2, 3}, .max_tokens = 20};
  auto done = engine->Submit({.prompt = {1}, .max_tokens = 1});
  auto running = engine->Submit(request), waiting = engine->Submit({.prompt = std::vector<int32_t>(30, 1)});
  ASSERT_TRUE(done && running && waiting);
  std::vector<TokenEvent> ends;
  int steps = 0;
  for (; engine->HasWork() && steps < 100; ++steps)
    for (const TokenEvent& event : engine->Step())
      if (event.finish != FinishReason::kNone) ends.push_back(event);
  EXPECT_EQ(steps, 4);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].finish, FinishReason::kLength);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(ends[i].request, i == 1 ? *running : *waiting);
    EXPECT_EQ(ends[i].finish, FinishReason::kError);
    EXPECT_EQ(ends[i].error, "the device fell off the bus");
  }
  ASSERT_TRUE(engine->fault());
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  EXPECT_FALSE(engine->HasWork());
  EXPECT_TRUE(engine->Step().empty());
  const auto refused = engine->Submit(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "the device fell off the bus");
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_FALSE(engine->Score(tokens, 1));
  engine->Cancel(*running);  // gone already: nothing happens
  EXPECT_FALSE(engine->HasWork());
}

TEST_P(EngineFault, EndsScoringToo) {
  auto engine = EngineInternals::Make(std::make_unique<FailingRunner>(1, GetParam()), {.chunk = 4});
  const std::vector<int32_t> tokens(30, 1);
  auto other = engine->Submit({.prompt = {1}, .max_tokens = 20});
  ASSERT_TRUE(other);
  const auto scores = engine->Score(tokens, 30 - 1);
  ASSERT_FALSE(scores);
  EXPECT_EQ(scores.error().message(), "the device fell off the bus");
  // Events of the other request are returned by the next step.
  const auto events = engine->Step();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].token, 1);
  EXPECT_EQ(events[1].finish, FinishReason::kError);
}

INSTANTIATE_TEST_SUITE_P(QueuedAhead, EngineFault, testing::Bool());

}  // namespace
}  // namespace celer
