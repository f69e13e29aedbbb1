#include <gtest/gtest.h>

#include <limits>

#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

constexpr int64_t kContext = 128, kHidden = 6;

// Hidden states become NaN from one position on, if that is asked for.
class FaultyRunner : public SimulatedRunner {
 public:
  using SimulatedRunner::SimulatedRunner;
  Result<StepOutput> Take() override {
    CELER_ASSIGN(StepOutput output, SimulatedRunner::Take());
    if (!broken) return output;
    rows_.assign(output.hidden.begin(), output.hidden.end());
    if (!rows_.empty()) rows_.back() = std::numeric_limits<float>::quiet_NaN();
    output.hidden = rows_;
    return output;
  }
  bool broken = false;

 private:
  std::vector<float> rows_;
};

struct Made {
  std::unique_ptr<Engine> engine;
  FaultyRunner* runner;
};

Made Make(const HashModel& model, const EngineOptions& options) {
  SimulatedRunner::Options runner{.model = model};
  runner.info.config.hidden = kHidden;
  runner.info.kv_blocks = 64;
  runner.info.context = kContext;
  auto made = std::make_unique<FaultyRunner>(std::move(runner));
  FaultyRunner* const pointer = made.get();
  return {EngineInternals::Make(std::move(made), options), pointer};
}

std::vector<int32_t> Prompt(int64_t count) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < count; ++i) prompt.push_back(static_cast<int32_t>(i * i % 40));
  return prompt;
}

// What one token after the other gives.
std::vector<float> Expected(const HashModel& model, const std::vector<int32_t>& prompt, Pooling pooling) {
  std::vector<double> sum(kHidden);
  std::vector<float> row(kHidden);
  for (size_t i = pooling == Pooling::kMean ? 0 : prompt.size() - 1; i < prompt.size(); ++i) {
    model.Hidden(model.HashOf(std::span(prompt).first(i + 1)), row);
    for (size_t k = 0; k < row.size(); ++k) sum[k] += double{row[k]};
  }
  for (size_t k = 0; k < row.size(); ++k)
    row[k] = static_cast<float>(sum[k] / (pooling == Pooling::kMean ? std::ssize(prompt) : 1));
  return row;
}

TEST(EngineEmbed, PoolsWhatTheModelSaysHoweverThePromptIsCut) {
  const HashModel model{.vocab = 48, .seed = 5};
  for (const int64_t chunk : {1, 7, 16, 512})
    for (const Pooling pooling : {Pooling::kMean, Pooling::kLast})
      for (const int64_t length : {int64_t{1}, int64_t{16}, int64_t{33}, kContext}) {
        SCOPED_TRACE(testing::Message() << chunk << " " << static_cast<int>(pooling) << " " << length);
        auto engine = Make(model, {.chunk = chunk}).engine;
        // Twice: the second one finds the first one's blocks, where it may use them.
        for (int turn = 0; turn < 2; ++turn) {
          Request request{.prompt = Prompt(length), .pooling = pooling};
          ASSERT_TRUE(engine->Submit(request));
          ASSERT_TRUE(engine->Submit({.prompt = Prompt(20), .max_tokens = 5}));  // not alone
          std::vector<TokenEvent> mine;
          int64_t id = 0;
          while (engine->HasWork())
            for (TokenEvent& event : engine->Step()) {
              if (event.embedding.empty()) continue;
              id = event.request;
              mine.push_back(std::move(event));
            }
          ASSERT_EQ(mine.size(), 1u);
          EXPECT_EQ(id, turn * 2 + 1);
          EXPECT_TRUE(mine[0].last);
          EXPECT_EQ(mine[0].finish, FinishReason::kStop);
          EXPECT_EQ(mine[0].token, TokenEvent::kNoToken);
          EXPECT_EQ(mine[0].embedding, Expected(model, request.prompt, pooling));
          const int64_t shared = (length - 1) / 16 * 16;
          EXPECT_EQ(mine[0].cached_tokens, turn == 1 && pooling == Pooling::kLast ? shared : 0);
          EXPECT_EQ(EngineInternals::CheckInvariants(*engine), "");
        }
        EXPECT_EQ(engine->stats().kv_blocks_used, 0);
        EXPECT_EQ(engine->stats().generated_tokens, 10);
      }
}

TEST(EngineEmbed, ManyAtOnceDoNotMix) {
  const HashModel model{.vocab = 48, .seed = 9};
  auto engine = Make(model, {.chunk = 37}).engine;
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i)
    requests.push_back(
        {.prompt = Prompt(5 + 7 * i), .pooling = i % 2 == 0 ? Pooling::kMean : Pooling::kLast});
  for (const Request& request : requests) ASSERT_TRUE(engine->Submit(request));
  size_t seen = 0;
  while (engine->HasWork())
    for (const TokenEvent& event : engine->Step()) {
      const Request& request = requests[event.request - 1];
      EXPECT_EQ(event.embedding, Expected(model, request.prompt, request.pooling)) << event.request;
      ++seen;
    }
  EXPECT_EQ(seen, requests.size());
}

TEST(EngineEmbed, WhatIsNotFiniteIsAnErrorOfItsRequestAlone) {
  const HashModel model{.vocab = 48, .seed = 5};
  Made made = Make(model, {.chunk = 16});
  made.runner->broken = true;
  ASSERT_TRUE(made.engine->Submit({.prompt = Prompt(30), .pooling = Pooling::kMean}));
  std::vector<TokenEvent> events;
  while (made.engine->HasWork())
    for (TokenEvent& event : made.engine->Step()) events.push_back(std::move(event));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_NE(events[0].error.find("not finite"), std::string::npos) << events[0].error;
  EXPECT_FALSE(made.engine->fault());
  EXPECT_EQ(made.engine->stats().kv_blocks_used, 0);
  made.runner->broken = false;
  ASSERT_TRUE(made.engine->Submit({.prompt = Prompt(30), .pooling = Pooling::kMean}));
  events = made.engine->Step();
  while (made.engine->HasWork()) events = made.engine->Step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].embedding, Expected(model, Prompt(30), Pooling::kMean));
}

TEST(EngineEmbed, TakesNothingThatIsAboutAnswers) {
  auto engine = Make({.vocab = 48}, {}).engine;
  const Request good{.prompt = Prompt(4), .pooling = Pooling::kMean};
  for (const auto& spoil : std::vector<std::function<void(Request&)>>{
           [](Request& r) { r.n = 2; }, [](Request& r) { r.best_of = 3; },
           [](Request& r) { r.beam.width = 2; }, [](Request& r) { r.prompt_logprobs = 0; }}) {
    Request request = good;
    spoil(request);
    const auto id = engine->Submit(request);
    ASSERT_FALSE(id);
    EXPECT_NE(id.error().message().find("embedding"), std::string::npos) << id.error().message();
  }
  const auto long_one = engine->Submit({.prompt = Prompt(kContext + 1), .pooling = Pooling::kMean});
  ASSERT_FALSE(long_one);
  EXPECT_NE(long_one.error().message().find("129"), std::string::npos) << long_one.error().message();
  EXPECT_TRUE(engine->Submit(good));
}

}  // namespace
}  // namespace celer
