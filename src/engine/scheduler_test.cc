#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "engine/block_manager.h"

namespace celer {
namespace {

std::unique_ptr<Sequence> MakeSequence(int64_t id, int64_t prompt) {
  Request request;
  request.prompt.assign(static_cast<size_t>(prompt), 1);
  return std::make_unique<Sequence>(id, std::move(request));
}

// What the engine does after a step: a sequence whose tokens are all computed gets its next one.
void Commit(std::span<const ScheduledPiece> pieces) {
  for (const auto& [sequence, tokens] : pieces) {
    sequence->computed += tokens;
    if (sequence->pending() == 0) sequence->tokens.push_back(2);
  }
}

TEST(BlockManager, GrowsShrinksAndRefuses) {
  BlockManager blocks(4, 16);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(blocks.Grow(&a, 17));
  EXPECT_EQ(a.size(), 2u);
  EXPECT_TRUE(blocks.Grow(&a, 32));  // fits already
  EXPECT_EQ(a.size(), 2u);
  EXPECT_FALSE(blocks.Grow(&b, 33));
  EXPECT_TRUE(b.empty());
  EXPECT_TRUE(blocks.Grow(&b, 32));
  EXPECT_EQ(blocks.free_blocks(), 0);
  blocks.Shrink(&a, 16);
  EXPECT_EQ(blocks.free_blocks(), 1);
  blocks.Shrink(&a, 0);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.free_blocks(), 4);
}

TEST(BlockManagerDeathTest, ABlockIsGivenBackOnce) {
  BlockManager blocks(2, 16);
  std::vector<int32_t> a;
  ASSERT_TRUE(blocks.Grow(&a, 16));
  std::vector<int32_t> copy = a;
  blocks.Shrink(&a, 0);
  EXPECT_DEATH(blocks.Shrink(&copy, 0), "taken_");
}

TEST(Scheduler, PrefillsInChunksAndDecodesFirst) {
  BlockManager blocks(100, 16);
  Scheduler scheduler(blocks, 10);
  scheduler.Add(MakeSequence(1, 25));
  std::vector<int64_t> chunks;
  for (int i = 0; i < 3; ++i) {
    const auto pieces = scheduler.Schedule();
    ASSERT_EQ(pieces.size(), 1u);
    chunks.push_back(pieces[0].tokens);
    Commit(pieces);
  }
  EXPECT_EQ(chunks, (std::vector<int64_t>{10, 10, 5}));
  scheduler.Add(MakeSequence(2, 25));
  const auto pieces = scheduler.Schedule();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].sequence->id, 1);
  EXPECT_EQ(pieces[0].tokens, 1);
  EXPECT_EQ(pieces[1].tokens, 9);
}

TEST(Scheduler, AFullCachePreemptsTheYoungestWhichIsComputedAgain) {
  BlockManager blocks(4, 16);
  Scheduler scheduler(blocks, 100);
  scheduler.Add(MakeSequence(1, 30));
  scheduler.Add(MakeSequence(2, 30));
  std::set<int64_t> finished;
  for (int step = 0; step < 200 && scheduler.HasWork(); ++step) {
    const auto pieces = scheduler.Schedule();
    ASSERT_FALSE(pieces.empty()) << "stuck at step " << step;
    Commit(pieces);
    for (const auto& piece : pieces)
      if (piece.sequence->output_count() >= 20 && !finished.contains(piece.sequence->id)) {
        const int64_t id = piece.sequence->id;
        finished.insert(id);
        auto done = scheduler.Remove(id);
        blocks.Shrink(&done->block_table, 0);
      }
  }
  EXPECT_EQ(finished.size(), 2u);
  EXPECT_GT(scheduler.preemptions(), 0);
  EXPECT_EQ(blocks.free_blocks(), 4);
}

// As after Submit() with continue_from: it waits, and has blocks of the request that it goes on from.
std::unique_ptr<Sequence> MakeContinued(int64_t id, int64_t prompt, int64_t reused, BlockManager& blocks) {
  auto sequence = MakeSequence(id, prompt);
  EXPECT_TRUE(blocks.Grow(&sequence->block_table, reused));
  sequence->computed = sequence->reused = reused;
  return sequence;
}

TEST(Scheduler, WaitingSequencesGiveTheirBlocksToRunningOnes) {
  BlockManager blocks(4, 16);
  Scheduler scheduler(blocks, 100);
  scheduler.Add(MakeSequence(1, 20));
  Commit(scheduler.Schedule());
  scheduler.Add(MakeContinued(2, 60, 30, blocks));  // does not fit beside the first
  for (int step = 0; step < 30; ++step) {
    const auto pieces = scheduler.Schedule();
    ASSERT_EQ(pieces.size(), 1u) << step;
    ASSERT_EQ(pieces[0].sequence->id, 1) << step;
    Commit(pieces);
  }
  EXPECT_EQ(blocks.free_blocks(), 0);
  EXPECT_EQ(scheduler.Find(2)->computed, 0);
  EXPECT_EQ(scheduler.Find(2)->reused, 0);
  blocks.Shrink(&scheduler.Remove(1)->block_table, 0);
  EXPECT_EQ(scheduler.Schedule().at(0).tokens, 60);
}

TEST(Scheduler, WaitingSequencesDoNotBlockEachOther) {
  BlockManager blocks(4, 16);
  Scheduler scheduler(blocks, 100);
  scheduler.Add(MakeContinued(1, 60, 30, blocks));
  scheduler.Add(MakeContinued(2, 60, 30, blocks));
  const auto pieces = scheduler.Schedule();
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].sequence->id, 1);
  EXPECT_EQ(pieces[0].tokens, 30);
}

TEST(Scheduler, RandomLoadNeverLeaksOrSharesABlock) {
  std::mt19937 random(5);
  BlockManager blocks(40, 16);
  Scheduler scheduler(blocks, 64);
  int64_t next = 1, finished = 0;
  std::set<int64_t> alive;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 4 == 0 && alive.size() < 12) {
      scheduler.Add(MakeSequence(next, 1 + random() % 200));
      alive.insert(next++);
    }
    if (!scheduler.HasWork()) continue;
    const auto pieces = scheduler.Schedule();
    ASSERT_FALSE(pieces.empty());
    int64_t tokens = 0;
    std::set<int32_t> used;
    for (const auto& piece : pieces) {
      tokens += piece.tokens;
      ASSERT_GE(static_cast<int64_t>(piece.sequence->block_table.size()) * 16,
                piece.sequence->computed + piece.tokens);
      for (const int32_t block : piece.sequence->block_table)
        ASSERT_TRUE(used.insert(block).second) << "block " << block << " has two owners";
    }
    ASSERT_LE(tokens, 64);
    Commit(pieces);
    for (const auto& piece : pieces)
      if (piece.sequence->output_count() > static_cast<int64_t>(random() % 50)) {
        auto done = scheduler.Remove(piece.sequence->id);
        if (!done) continue;
        blocks.Shrink(&done->block_table, 0);
        alive.erase(done->id);
        ++finished;
      }
  }
  EXPECT_GT(finished, 50);
  for (const int64_t id : alive)
    if (auto sequence = scheduler.Remove(id)) blocks.Shrink(&sequence->block_table, 0);
  EXPECT_EQ(blocks.free_blocks(), 40);
}

}  // namespace
}  // namespace celer
