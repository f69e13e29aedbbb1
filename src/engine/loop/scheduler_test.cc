#include "engine/loop/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "engine/kv/block_manager.h"

namespace celer {
namespace {

// A sequence of its own, as a request with one answer is.
struct One {
  One(int64_t id, int64_t prompt, int priority = 0) {
    group.request.prompt.assign(prompt, 1);
    group.request.priority = priority;
    group.sequences.push_back(std::make_unique<Sequence>(id, group.request, 0));
    sequence = group.sequences[0].get();
    sequence->group = &group;
    group.order = {.priority = priority, .arrival = id};
  }
  Group group;
  Sequence* sequence;
};

// What the engine does after a step: a sequence whose tokens are all computed gets its next one.
void Commit(const StepPlan& plan) {
  for (const auto& [sequence, tokens] : plan.now) {
    sequence->computed += tokens;
    if (sequence->pending() == 0) sequence->tokens.push_back(2);
  }
}

void End(Scheduler& scheduler, BlockManager& blocks, Sequence* sequence) {
  scheduler.Remove(sequence);
  blocks.Shrink(&sequence->block_table, 0);
  blocks.FreeHost(&sequence->host_table);
}

TEST(Scheduler, PrefillsInChunksAndDecodesFirst) {
  BlockManager blocks(100);
  Scheduler scheduler(blocks, {.step = 10});
  One first(1, 25), second(2, 25);
  scheduler.Add(first.sequence);
  std::vector<int64_t> chunks;
  for (int i = 0; i < 3; ++i) {
    const StepPlan plan = scheduler.Schedule();
    ASSERT_EQ(plan.now.size(), 1u);
    chunks.push_back(plan.now[0].tokens);
    Commit(plan);
  }
  EXPECT_EQ(chunks, (std::vector<int64_t>{10, 10, 5}));
  scheduler.Add(second.sequence);
  const StepPlan plan = scheduler.Schedule();
  ASSERT_EQ(plan.now.size(), 2u);
  EXPECT_EQ(plan.now[0].sequence, first.sequence);
  EXPECT_EQ(plan.now[0].tokens, 1);
  EXPECT_EQ(plan.now[1].tokens, 9);
}

TEST(Scheduler, AnOlderPromptDoesNotHoldUpThoseThatDecode) {
  BlockManager blocks(100);
  Scheduler scheduler(blocks, {.step = 32, .mixed = 8});
  One first(1, 100), second(2, 5);
  scheduler.Add(second.sequence);
  Commit(scheduler.Schedule());
  scheduler.Add(first.sequence);  // goes first: it is older
  for (int i = 0; i < 10; ++i) {
    const StepPlan plan = scheduler.Schedule();
    ASSERT_EQ(plan.now.size(), 2u) << i;
    for (const auto& [sequence, tokens] : plan.now)
      EXPECT_EQ(tokens, sequence == second.sequence ? 1 : 7) << "a mixed step has 8 tokens";
    Commit(plan);
  }
}

TEST(Scheduler, AmongVeryManyThatDecodeAPromptDoesNotCrawl) {
  BlockManager blocks(100);
  Scheduler scheduler(blocks, {.step = 64, .mixed = 16});
  std::vector<std::unique_ptr<One>> decoding;
  for (int i = 0; i < 20; ++i) {
    decoding.push_back(std::make_unique<One>(i + 1, 3));
    scheduler.Add(decoding.back()->sequence);
  }
  Commit(scheduler.Schedule());
  One late(99, 50);
  scheduler.Add(late.sequence);
  const StepPlan plan = scheduler.Schedule();
  ASSERT_EQ(plan.now.size(), 21u);
  EXPECT_EQ(plan.now.back().sequence, late.sequence);
  EXPECT_EQ(plan.now.back().tokens, 4) << "a quarter of a mixed step";
}

TEST(Scheduler, ManyPromptsGetTheirShareOfAStep) {
  BlockManager blocks(100);
  Scheduler scheduler(blocks, {.step = 64, .mixed = 8});
  One decodes(1, 5), a(2, 50), b(3, 50), c(4, 50);
  scheduler.Add(decodes.sequence);
  Commit(scheduler.Schedule());
  for (One* one : {&a, &b, &c}) scheduler.Add(one->sequence);
  int64_t tokens = 0;
  for (const Scheduled& part : scheduler.Schedule().now) tokens += part.tokens;
  EXPECT_EQ(tokens, 64 * 8 / 9) << "two more prompts than the one that may wait, beside one that decodes";
}

TEST(Scheduler, LowerPriorityNumbersGoFirstAndEveryoneIsServedInTheEnd) {
  BlockManager blocks(4);
  Scheduler scheduler(blocks, {.step = 64});
  One low(1, 60, 5);
  scheduler.Add(low.sequence);
  // A stream of more urgent requests, each of which needs all blocks.
  std::vector<std::unique_ptr<One>> urgent;
  int64_t begun = 0;
  for (int64_t step = 0; step < 3 * Scheduler::kStarvationSteps && begun == 0; ++step) {
    if (urgent.empty() || urgent.back()->sequence->output_count() > 0) {
      if (!urgent.empty()) End(scheduler, blocks, urgent.back()->sequence);
      urgent.push_back(std::make_unique<One>(step + 2, 60));
      scheduler.Add(urgent.back()->sequence);
    }
    const StepPlan plan = scheduler.Schedule();
    Commit(plan);
    for (const auto& part : plan.now)
      if (part.sequence == low.sequence) begun = step;
  }
  EXPECT_GE(begun, Scheduler::kStarvationSteps / 2) << "the urgent ones did not go first";
  EXPECT_GT(begun, 0) << "it was never served";
}

class Preempting : public testing::TestWithParam<Preemption> {};

TEST_P(Preempting, AFullCachePreemptsTheLastWhichGoesOnLater) {
  BlockManager blocks(4, 4);
  Scheduler scheduler(blocks, {.step = 100}, GetParam());
  One first(1, 30), second(2, 30);
  scheduler.Add(first.sequence);
  scheduler.Add(second.sequence);
  std::set<Sequence*> finished;
  for (int step = 0; step < 200 && scheduler.HasWork(); ++step) {
    const StepPlan plan = scheduler.Schedule();
    ASSERT_FALSE(plan.now.empty()) << "stuck at step " << step;
    Commit(plan);
    for (const auto& part : plan.now)
      if (part.sequence->output_count() >= 20 && finished.insert(part.sequence).second)
        End(scheduler, blocks, part.sequence);
  }
  EXPECT_EQ(finished.size(), 2u);
  EXPECT_GT(GetParam() == Preemption::kSwap ? scheduler.swaps() : scheduler.recomputations(), 0);
  EXPECT_EQ(blocks.free_blocks(), 4);
  EXPECT_EQ(blocks.free_host_blocks(), 4);
}
INSTANTIATE_TEST_SUITE_P(Ways, Preempting, testing::Values(Preemption::kSwap, Preemption::kRecompute),
                         [](const auto& test) {
                           return test.param == Preemption::kSwap ? "Swap" : "Recompute";
                         });

}  // namespace
}  // namespace celer
