#include "models/kv_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer {
namespace {

constexpr int64_t kMib = 1 << 20;

int64_t Blocks(const KvBudget& budget, int64_t room, double default_share = 0.5) {
  const auto blocks = BlocksWithin(budget, room, default_share, kMib);
  EXPECT_TRUE(blocks) << blocks.error().message();
  return blocks ? *blocks : -1;
}

TEST(KvBudget, ASizeIsThatSize) {
  EXPECT_EQ(Blocks({.bytes = 40 * kMib, .context = 64}, 100 * kMib), 40);
  EXPECT_EQ(Blocks({.bytes = 40 * kMib + 5, .context = 64, .sequences = 1}, 100 * kMib), 40);
}

TEST(KvBudget, AShareIsOfWhatIsFree) {
  EXPECT_EQ(Blocks({.share = 0.8, .context = 64}, 100 * kMib), 80);
  EXPECT_EQ(Blocks({.share = 1, .context = 64, .sequences = 1}, 100 * kMib), 100);
}

TEST(KvBudget, TheDefaultTakesAShareOrWhatTheSequencesNeed) {
  EXPECT_EQ(Blocks({.context = 64}, 100 * kMib), 50);
  EXPECT_EQ(Blocks({.context = 64, .sequences = 3}, 100 * kMib), 12);
  EXPECT_EQ(Blocks({.context = 33, .sequences = 1}, 100 * kMib), 3);  // whole blocks
  EXPECT_EQ(Blocks({.context = 64, .sequences = 20}, 100 * kMib),
            80);  // more than the share, for they will be used
  EXPECT_EQ(Blocks({.context = 64, .sequences = 1000}, 100 * kMib), 100);
}

TEST(KvBudget, OneSequenceMustFit) {
  const auto blocks = BlocksWithin({.context = 4096, .sequences = 1}, 100 * kMib, 0.5, kMib);
  ASSERT_FALSE(blocks);
  EXPECT_EQ(blocks.error().code(), Error::Code::kOutOfMemory);
  EXPECT_THAT(blocks.error().message(), testing::HasSubstr("context of 4096"));
  EXPECT_THAT(blocks.error().message(), testing::HasSubstr("context of 1600"));
  const auto small = BlocksWithin({.bytes = 3 * kMib, .context = 64}, 100 * kMib, 0.5, kMib);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message(), testing::HasSubstr("raise `kv_memory`"));
  EXPECT_FALSE(BlocksWithin({.context = 16}, -5, 0.5, kMib));
}

TEST(KvBudget, MoreThanThereIsIsAnError) {
  const auto blocks = BlocksWithin({.bytes = 101 * kMib, .context = 64}, 100 * kMib, 0.5, kMib);
  ASSERT_FALSE(blocks);
  EXPECT_THAT(blocks.error().message(), testing::HasSubstr("only 100.0 MiB are free"));
}

TEST(KvBudget, StatesTakeTheirPartFirst) {
  const auto none = PlanWithin({.bytes = 40 * kMib, .context = 64}, 100 * kMib, 0.5, kMib, 0);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->blocks, 40);
  EXPECT_EQ(none->states, 0);
  // A quarter of the memory, and twice as many as there are sequences at most.
  const auto large = PlanWithin({.bytes = 40 * kMib, .context = 64}, 100 * kMib, 0.5, kMib, 2 * kMib);
  ASSERT_TRUE(large);
  EXPECT_EQ(large->states, 5);
  EXPECT_EQ(large->blocks, 30);
  const auto few =
      PlanWithin({.bytes = 40 * kMib, .context = 64, .sequences = 2}, 100 * kMib, 0.5, kMib, kMib);
  ASSERT_TRUE(few);
  EXPECT_EQ(few->states, 4);
  EXPECT_EQ(few->blocks, 36);
  const auto tight = PlanWithin({.bytes = 10 * kMib, .context = 64}, 100 * kMib, 0.5, kMib, 3 * kMib);
  ASSERT_TRUE(tight);
  EXPECT_EQ(tight->states, 2);
  EXPECT_EQ(tight->blocks, 4);
  const auto full = PlanWithin({.bytes = 10 * kMib, .context = 64}, 100 * kMib, 0.5, kMib, 5 * kMib);
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message(), ::testing::HasSubstr("the states of 2 sequences"));
}

}  // namespace
}  // namespace celer
