// The simulated device by itself, and below the engine. Whatever it reports here, a test of the scheduler can
// rely on.
#include "engine/runners/simulated_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "engine/loop/engine_internals.h"
#include "engine/runners/run_logits.h"

namespace celer {
namespace {

using ::testing::HasSubstr;
using Rows = Slice::Rows;

SimulatedRunner::Options Tiny(int64_t blocks = 8) {
  SimulatedRunner::Options options;
  options.info.context = 128;
  options.info.kv_blocks = blocks;
  options.info.kv_host_blocks = 4;
  return options;
}

std::vector<int32_t> SomeTokens(int64_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = (first + static_cast<int32_t>(7 * i)) % 64;
  return tokens;
}

// The text that greedy decoding gives without any engine.
std::vector<int32_t> Greedy(const HashModel& model, std::vector<int32_t> tokens, int64_t count) {
  const size_t prompt = tokens.size();
  for (int64_t i = 0; i < count; ++i) tokens.push_back(model.Largest(tokens));
  return {tokens.begin() + static_cast<int64_t>(prompt), tokens.end()};
}

std::string Message(const Status& status) {
  return status ? "" : status.error().message();
}

// Queues and takes one slice.
std::string RunOne(SimulatedRunner& runner, const Slice& slice) {
  const auto rows = RunLogits(runner, {&slice, 1});
  return rows ? "" : rows.error().message();
}

TEST(HashModel, LogitsDependOnTheTextAndTheSeed) {
  const HashModel model{.vocab = 100}, other{.vocab = 100, .seed = 1};
  std::set<int32_t> seen;
  std::vector<float> row(100);
  for (int32_t i = 0; i < 200; ++i) {
    const std::vector<int32_t> text = {i % 100, i / 100, 3};
    const uint64_t hash = model.HashOf(text);
    model.Logits(hash, row);
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), model.Largest(text));
    EXPECT_TRUE(LogitsAreFinite(row));
    EXPECT_NE(hash, other.HashOf(text));
    seen.insert(model.Largest(text));
  }
  EXPECT_GT(seen.size(), 60u);
}

TEST(HashModel, OfAnOrderForgets) {
  const HashModel model{.vocab = 100, .order = 2};
  const std::vector<int32_t> a = {9, 9, 1, 2}, b = {5, 1, 2}, c = {5, 2, 2};
  EXPECT_EQ(model.HashOf(a), model.HashOf(b));
  EXPECT_NE(model.HashOf(a), model.HashOf(c));
}

TEST(SimulatedRunner, RowsAreTheSameHoweverATextIsCut) {
  const std::vector<int32_t> text = SomeTokens(40), table = {5, 0, 3};
  for (const int64_t order : {0, 3, 20}) {
    SimulatedRunner::Options options = Tiny();
    options.model.order = order;
    for (const bool verify : {true, false}) {
      options.verify = verify;
      SimulatedRunner whole(options), cut(options);
      const Slice all{.tokens = text, .block_table = table, .rows = Rows::kAll};
      const auto want = RunLogits(whole, {&all, 1});
      ASSERT_TRUE(want);
      ASSERT_EQ(want->size(), 40u * 64);
      std::vector<float> got;
      for (int64_t at = 0; at < 40;) {
        const int64_t now = std::min<int64_t>(40 - at, 1 + at % 17);
        const Slice slice{.tokens = std::span(text).subspan(at, now),
                          .position = at,
                          .block_table = table,
                          .rows = Rows::kAll};
        const auto rows = RunLogits(cut, {&slice, 1});
        ASSERT_TRUE(rows) << rows.error().message();
        got.insert(got.end(), rows->begin(), rows->end());
        at += now;
      }
      EXPECT_EQ(got, *want) << order;
      Slice last = all;
      last.rows = Rows::kLast;
      SimulatedRunner fresh(options);
      const auto row = RunLogits(fresh, {&last, 1});
      ASSERT_TRUE(row);
      EXPECT_EQ(*row, std::vector<float>(want->end() - 64, want->end()));
      std::vector<float> direct(64);
      options.model.Logits(options.model.HashOf(text), direct);
      EXPECT_EQ(*row, direct);
    }
  }
}

TEST(SimulatedRunner, FindsBlocksThatHoldSomethingElse) {
  const std::vector<int32_t> a = SomeTokens(33), b = SomeTokens(33, 2);
  const std::vector<int32_t> ta = {0, 1, 2}, tb = {3, 4, 5};
  SimulatedRunner runner(Tiny());
  ASSERT_EQ(RunOne(runner,
                   {.sequence = 1, .tokens = std::span(a).first(32), .block_table = ta, .rows = Rows::kNone}),
            "");
  ASSERT_EQ(RunOne(runner,
                   {.sequence = 2, .tokens = std::span(b).first(32), .block_table = tb, .rows = Rows::kNone}),
            "");
  const auto next = [&](std::span<const int32_t> table, std::span<const int32_t> history) {
    return RunOne(runner, {.sequence = 1,
                           .tokens = std::span(a).last(1),
                           .position = 32,
                           .block_table = table,
                           .rows = Rows::kNone,
                           .history = history});
  };
  EXPECT_EQ(next(ta, a), "");
  // The middle of another text: the chain is broken.
  EXPECT_EQ(next(std::vector<int32_t>{0, 4, 2}, a),
            "block 4 holds the keys of another text at position 16 of sequence 1");
  // All of another text: the tokens are not those of the sequence.
  EXPECT_EQ(next(tb, a), "block 3 holds the keys of token 2 instead of 1 at position 0 of sequence 1");
  EXPECT_EQ(next(tb, {}), "");  // cannot be known
  EXPECT_EQ(next(std::vector<int32_t>{0, 7, 2}, a), "block 7 holds nothing at position 16 of sequence 1");
  const int32_t cleared[] = {1};
  ASSERT_TRUE(runner.ClearBlocks(cleared));
  EXPECT_EQ(next(ta, a), "block 1 holds nothing at position 16 of sequence 1");
}

TEST(SimulatedRunner, BlocksKeepTheirTextWhereverTheyGo) {
  const std::vector<int32_t> a = SomeTokens(33), ta = {0, 1, 2};
  SimulatedRunner runner(Tiny());
  ASSERT_EQ(RunOne(runner, {.tokens = std::span(a).first(32), .block_table = ta, .rows = Rows::kNone}), "");
  const auto next = [&](std::vector<int32_t> table) {
    return RunOne(runner, {.tokens = std::span(a).last(1),
                           .position = 32,
                           .block_table = table,
                           .rows = Rows::kNone,
                           .history = a});
  };
  const BlockCopy out[] = {{0, 3}, {1, 0}}, back[] = {{3, 6}, {0, 7}}, swapped[] = {{0, 6}, {3, 7}};
  ASSERT_TRUE(runner.SwapOut(out));
  const int32_t all[] = {0, 1};
  ASSERT_TRUE(runner.ClearBlocks(all));
  ASSERT_TRUE(runner.SwapIn(back));
  EXPECT_EQ(next({6, 7, 2}), "");
  ASSERT_TRUE(runner.SwapIn(swapped));
  EXPECT_THAT(next({6, 7, 2}), HasSubstr("another text at position 0"));
  const BlockCopy copies[] = {{7, 4}, {6, 5}};
  ASSERT_TRUE(runner.CopyBlocks(copies));
  EXPECT_EQ(next({4, 5, 2}), "");
}

TEST(SimulatedRunner, RefusesWhatNoDeviceCanDo) {
  const std::vector<int32_t> a = SomeTokens(40), table = {0, 1, 2};
  SimulatedRunner runner(Tiny());
  const auto queue = [&](std::vector<Slice> slices) { return Message(runner.Queue(slices)); };
  const Slice good{.sequence = 9, .tokens = a, .block_table = table, .rows = Rows::kNone};
  Slice s = good;
  s.block_table = std::span(table).first(2);
  EXPECT_EQ(queue({s}), "sequence 9 runs up to position 39, but its 2 blocks end at 32");
  const std::vector<int32_t> outside = {0, 8, 2};
  s.block_table = outside;
  EXPECT_EQ(queue({s}), "sequence 9 has block 8 at position 16, and the pool has 8");
  std::vector<int32_t> tokens = a;
  tokens[3] = 64;
  s = good;
  s.tokens = tokens;
  EXPECT_EQ(queue({s}), "sequence 9 has token 64 at position 3, and the vocabulary has 64");
  tokens[3] = Slice::kChosenBefore;  // only the first can be unknown
  EXPECT_THAT(queue({s}), HasSubstr("has token -1 at position 3"));
  Slice other = good;
  other.sequence = 10;
  const std::vector<int32_t> shared = {5, 6, 2};
  other.block_table = shared;
  EXPECT_THAT(queue({good, other}), HasSubstr("block 2 is written by sequence 10 at position 32"));
  const std::vector<int32_t> far(9, 1);
  s = good;
  s.position = 100;
  s.block_table = far;
  EXPECT_EQ(queue({s}), "sequence 9 runs up to position 139, but the context has 128");

  const BlockCopy twice[] = {{0, 2}, {1, 2}}, chained[] = {{0, 1}, {1, 2}}, nowhere[] = {{0, 4}};
  EXPECT_EQ(Message(runner.CopyBlocks(twice)), "copying blocks writes block 2 twice");
  EXPECT_EQ(Message(runner.CopyBlocks(chained)), "copying blocks both reads and writes block 1");
  EXPECT_EQ(Message(runner.SwapOut(nowhere)), "swapping out block 0 to 4, but there are 8 and 4");
}

TEST(SimulatedRunner, DroppedStepsLeaveNothingOfUse) {
  const std::vector<int32_t> a = SomeTokens(18), table = {0, 1};
  SimulatedRunner runner(Tiny());
  const auto slice = [&](size_t from, size_t count) {
    return Slice{.tokens = std::span(a).subspan(from, count),
                 .position = static_cast<int64_t>(from),
                 .block_table = table,
                 .rows = Rows::kNone};
  };
  ASSERT_EQ(RunOne(runner, slice(0, 16)), "");
  const Slice dropped = slice(16, 1);
  ASSERT_TRUE(runner.Queue({&dropped, 1}));
  runner.DropQueued();
  EXPECT_THAT(RunOne(runner, slice(17, 1)), HasSubstr("another text at position 16"));
  EXPECT_EQ(RunOne(runner, slice(16, 2)), "");
}

TEST(SimulatedRunner, TakesTokensThatTheStepBeforeChose) {
  const std::vector<int32_t> prompt = SomeTokens(15), table = {0, 1};
  for (const int64_t vocab : {64, 5000}) {
    SimulatedRunner::Options options = Tiny();
    options.model.vocab = vocab;
    options.runs_ahead = true;
    SimulatedRunner runner(options);
    Sampler sampler({}, prompt);
    const int32_t unknown[] = {Slice::kChosenBefore};
    const Slice first{
        .sequence = 3, .tokens = prompt, .block_table = table, .sampler = &sampler, .history = prompt};
    Slice second = first, third = first;
    second.tokens = third.tokens = unknown;
    second.position = 15;
    third.position = 16;
    EXPECT_FALSE(runner.RunsAhead({&first, 1}));
    EXPECT_TRUE(runner.RunsAhead({&second, 1}));
    ASSERT_TRUE(runner.Queue({&first, 1}));
    ASSERT_TRUE(runner.Queue({&second, 1}));
    std::vector<int32_t> got;
    for (int i = 0; i < 3; ++i) {
      const auto output = runner.Take();
      ASSERT_TRUE(output) << output.error().message();
      got.push_back(output->choices.at(0).token);
      if (i == 0) {
        ASSERT_TRUE(runner.Queue({&third, 1}));
      }
    }
    EXPECT_EQ(got, Greedy(options.model, prompt, 3));
    // Another sequence cannot go on with it.
    third.sequence = 4;
    third.position = 17;
    ASSERT_TRUE(runner.Queue({&third, 1}));
    EXPECT_THAT(runner.Take().error().message(), HasSubstr("did not choose"));
  }
}

TEST(SimulatedRunner, ItsClockCountsStepsCopiesAndWaiting) {
  const std::vector<int32_t> a = SomeTokens(16), table = {0};
  SimulatedRunner::Options options = Tiny();
  options.step_seconds = [](std::span<const Slice> slices) {
    return 0.5 * static_cast<double>(slices[0].count());
  };
  options.copy_block_s = 0.25;
  options.swap_block_s = 2;
  SimulatedRunner runner(options);
  const Slice slice{.tokens = a, .block_table = table, .rows = Rows::kNone};
  ASSERT_EQ(RunOne(runner, slice), "");
  EXPECT_EQ(runner.now(), 8);
  const BlockCopy copies[] = {{0, 1}, {0, 2}};
  ASSERT_TRUE(runner.CopyBlocks(copies));
  EXPECT_EQ(runner.now(), 8.5);
  ASSERT_TRUE(runner.Queue({&slice, 1}));
  ASSERT_TRUE(runner.SwapOut({copies, 1}));  // after the step
  EXPECT_EQ(runner.now(), 8.5);
  ASSERT_TRUE(runner.Take());
  EXPECT_EQ(runner.now(), 18.5);
  runner.AdvanceTo(3);
  EXPECT_EQ(runner.now(), 18.5);
  runner.AdvanceTo(20);
  EXPECT_EQ(runner.now(), 20);
}

// Through the engine: any batch, any chunks, in any order of the queue.
TEST(SimulatedRunner, EveryTextComesOutOfTheEngine) {
  for (const bool ahead : {false, true})
    for (const int64_t chunk : {3, 16, 100}) {
      SimulatedRunner::Options options = Tiny(24);
      options.runs_ahead = ahead;
      auto engine = EngineInternals::Make(std::make_unique<SimulatedRunner>(options), {.chunk = chunk});
      std::map<int64_t, std::vector<int32_t>> want, got;
      for (int32_t i = 0; i < 9; ++i) {
        const std::vector<int32_t> prompt = SomeTokens(1 + 11 * (i % 5), i);
        const auto id = engine->Submit({.prompt = prompt, .max_tokens = 5 + 7 * (i % 3)});
        ASSERT_TRUE(id);
        want[*id] = Greedy(options.model, prompt, 5 + 7 * (i % 3));
      }
      for (int steps = 0; engine->HasWork(); ++steps) {
        ASSERT_LT(steps, 1000);
        for (const TokenEvent& event : engine->Step()) {
          ASSERT_EQ(event.error, "");
          got[event.request].push_back(event.token);
        }
      }
      EXPECT_EQ(got, want) << "ahead " << ahead << ", chunk " << chunk;
    }
}

}  // namespace
}  // namespace celer
