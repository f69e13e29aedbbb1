// Allocation, sharing, copy-on-write, prefix caching and eviction of blocks.
#include "engine/kv/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace celer {
namespace {

std::vector<int32_t> Count(int first, int count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

bool Grow(BlockManager& blocks, BlockTable* table, int64_t tokens) {
  std::vector<BlockMove> moves;
  const bool grown =
      blocks.Prepare(table, static_cast<int64_t>(table->size()) * kKvBlockTokens, tokens, &moves);
  EXPECT_TRUE(moves.empty());
  return grown;
}

// As after a sequence has computed these tokens.
PrefixCache::Content Publish(BlockManager& blocks, const BlockTable& table, std::span<const int32_t> tokens,
                             PrefixCache::Content content) {
  for (size_t i = 0; (i + 1) * kKvBlockTokens <= tokens.size(); ++i)
    content =
        blocks.cache().Insert(content, tokens.subspan(i * kKvBlockTokens).first<kKvBlockTokens>(), table[i]);
  return content;
}

TEST(BlockManager, GrowsShrinksAndRefuses) {
  BlockManager blocks(4);
  BlockTable a, b;
  EXPECT_TRUE(Grow(blocks, &a, 17));
  EXPECT_EQ(a.size(), 2u);
  EXPECT_TRUE(Grow(blocks, &a, 32));  // fits already
  EXPECT_EQ(a.size(), 2u);
  EXPECT_FALSE(Grow(blocks, &b, 33));
  EXPECT_TRUE(b.empty());
  EXPECT_TRUE(Grow(blocks, &b, 32));
  EXPECT_EQ(blocks.free_blocks(), 0);
  blocks.Shrink(&a, 16);
  EXPECT_EQ(blocks.free_blocks(), 1);
  blocks.Shrink(&a, 0);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.free_blocks(), 4);
}

TEST(BlockManagerDeathTest, ABlockIsGivenBackOnce) {
  BlockManager blocks(2);
  BlockTable a;
  ASSERT_TRUE(Grow(blocks, &a, 16));
  BlockTable copy = a;
  blocks.Shrink(&a, 0);
  EXPECT_DEATH(blocks.Shrink(&copy, 0), "ref_count");
}

TEST(BlockManager, ASharedBlockIsCopiedBeforeItIsWritten) {
  BlockManager blocks(4);
  BlockTable a;
  ASSERT_TRUE(Grow(blocks, &a, 24));
  BlockTable b = blocks.Share(a);
  EXPECT_EQ(blocks.free_blocks(), 2);
  std::vector<BlockMove> moves;
  const BlockManager::Write write{&b, 24, 25};
  EXPECT_EQ(blocks.Missing({&write, 1}), 1);
  ASSERT_TRUE(blocks.Prepare(&b, 24, 25, &moves));
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].blocks.from, a[1]);
  EXPECT_EQ(moves[0].blocks.to, b[1]);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  moves.clear();
  ASSERT_TRUE(blocks.Prepare(&a, 24, 25, &moves));  // the only one by now
  EXPECT_TRUE(moves.empty());
  blocks.Shrink(&a, 0);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.free_blocks(), 4);
}

// Beams that share their last block and all write to it: the last one needs no copy.
TEST(BlockManager, ThoseWhoWriteTogetherTakeOneCopyLessThanTheyAre) {
  BlockManager blocks(5);
  BlockTable a;
  ASSERT_TRUE(Grow(blocks, &a, 24));
  BlockTable b = blocks.Share(a), c = blocks.Share(a);
  std::vector<BlockManager::Write> writes = {{&a, 24, 25}, {&b, 24, 25}};
  EXPECT_EQ(blocks.Missing(writes), 2) << "c still reads what they share";
  writes.push_back({&c, 24, 25});
  EXPECT_EQ(blocks.Missing(writes), 2);
  const int32_t shared = a[1];
  BlockTable other;
  ASSERT_TRUE(Grow(blocks, &other, 32));
  std::vector<BlockMove> moves;
  EXPECT_FALSE(blocks.Prepare(writes, &moves));
  EXPECT_TRUE(moves.empty() && a == b && b == c) << "all of it or nothing";
  blocks.Shrink(&other, 16);
  ASSERT_TRUE(blocks.Prepare(writes, &moves));
  EXPECT_EQ(blocks.free_blocks(), 0);
  EXPECT_EQ(moves.size(), 2u);
  EXPECT_EQ(c[1], shared);
  EXPECT_TRUE(a[0] == b[0] && b[0] == c[0] && a[1] != b[1] && a[1] != c[1] && b[1] != c[1]);
}

TEST(BlockManager, ABlockThatOthersMayFindIsCopiedByAll) {
  BlockManager blocks(4);
  BlockTable a;
  const std::vector<int32_t> tokens = Count(0, 16);
  const auto root = blocks.cache().TakeRoot("");
  ASSERT_TRUE(Grow(blocks, &a, 16));
  Publish(blocks, a, tokens, root);
  BlockTable b = blocks.Share(a);
  const std::vector<BlockManager::Write> writes = {{&a, 15, 16}, {&b, 15, 16}};
  EXPECT_EQ(blocks.Missing(writes), 2);
  std::vector<BlockMove> moves;
  ASSERT_TRUE(blocks.Prepare(writes, &moves));
  EXPECT_EQ(moves.size(), 2u);
  EXPECT_EQ(blocks.free_blocks(), 2);
  EXPECT_EQ(blocks.cached_free_blocks(), 1);
}

// As many as a flag allows: memory is used for allocated blocks only.
TEST(BlockManager, HostBlocksAreCountedBeforeTheyAreUsed) {
  constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
  BlockManager blocks(1, kMany);
  BlockTable a = blocks.AllocateHost(3), b = blocks.AllocateHost(2);
  EXPECT_EQ(blocks.free_host_blocks(), kMany - 5);
  EXPECT_TRUE(blocks.AllocateHost(kMany).empty());
  blocks.FreeHost(&a);
  BlockTable c = blocks.AllocateHost(4);
  std::vector<int32_t> all = c;
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, Count(0, 6)) << "those that were given back are taken first";
}

TEST(PrefixCache, FindsWhatBeginsAlikeAndNothingElse) {
  BlockManager blocks(8);
  const auto root = blocks.cache().TakeRoot(""), salted = blocks.cache().TakeRoot("someone else");
  const std::vector<int32_t> tokens = Count(0, 40);
  BlockTable a;
  ASSERT_TRUE(Grow(blocks, &a, 40));
  Publish(blocks, a, tokens, root);
  blocks.Shrink(&a, 0);
  EXPECT_EQ(blocks.cached_free_blocks(), 2);

  EXPECT_EQ(blocks.CountCached(tokens, root), 2);
  EXPECT_EQ(blocks.CountCached(tokens, salted), 0);
  EXPECT_EQ(blocks.CountCached(std::span(tokens).first(31), root), 1);
  std::vector<int32_t> other = tokens;
  other[3] = 99;  // the second block is the same, and stands behind something else
  EXPECT_EQ(blocks.CountCached(other, root), 0);
  other = tokens;
  other[20] = 99;
  EXPECT_EQ(blocks.CountCached(other, root), 1);

  BlockTable b;
  auto content = root;
  blocks.Attach(&b, tokens, &content);
  EXPECT_EQ(b.size(), 2u);
  EXPECT_EQ(blocks.free_blocks(), 6);
  std::vector<BlockMove> moves;
  ASSERT_TRUE(blocks.Prepare(&b, 31, 33, &moves)) << "what others may find is not written to";
  EXPECT_EQ(moves.size(), 1u);
  EXPECT_EQ(b.size(), 3u);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.CountCached(tokens, root), 2);
}

TEST(PrefixCache, TheLeastRecentlyUsedGoesFirstAndOfAChainTheLastBlock) {
  BlockManager blocks(4);
  const auto root = blocks.cache().TakeRoot("");
  const auto first = Count(0, 32), second = Count(100, 32);
  for (const auto& tokens : {first, second}) {
    BlockTable table;
    ASSERT_TRUE(Grow(blocks, &table, 32));
    Publish(blocks, table, tokens, root);
    blocks.Shrink(&table, 0);
  }
  EXPECT_EQ(blocks.cached_free_blocks(), 4);
  {  // used again
    BlockTable table;
    auto content = root;
    blocks.Attach(&table, first, &content);
    blocks.Shrink(&table, 0);
  }
  BlockTable table;
  ASSERT_TRUE(Grow(blocks, &table, 16));
  EXPECT_EQ(blocks.evictions(), 1);
  EXPECT_EQ(blocks.CountCached(first, root), 2);
  EXPECT_EQ(blocks.CountCached(second, root), 1);
  ASSERT_TRUE(Grow(blocks, &table, 48));
  EXPECT_EQ(blocks.CountCached(first, root), 1);
  EXPECT_EQ(blocks.CountCached(second, root), 0);
}

TEST(PrefixCache, TheSameContentInTwoBlocksIsKnownOnce) {
  BlockManager blocks(4);
  const auto root = blocks.cache().TakeRoot("");
  const auto tokens = Count(0, 16);
  BlockTable a, b;
  ASSERT_TRUE(Grow(blocks, &a, 16) && Grow(blocks, &b, 16));
  const auto first = Publish(blocks, a, tokens, root);
  EXPECT_EQ(Publish(blocks, b, tokens, root), first);
  EXPECT_EQ(blocks.cache().size(), 1);
  blocks.Uncache(a);
  EXPECT_EQ(blocks.CountCached(tokens, root), 0);
  // Without its first block the second one cannot be found, so it is not cached either.
  Publish(blocks, b, tokens, root);
  const auto longer = Count(0, 32);
  ASSERT_TRUE(Grow(blocks, &b, 32));
  Publish(blocks, b, longer, root);
  blocks.Uncache({b[0]});
  EXPECT_EQ(blocks.cache().size(), 0);
  Publish(blocks, b, longer, root);
  EXPECT_EQ(blocks.CountCached(longer, root), 2);
  EXPECT_EQ(blocks.cache().size(), 2);
}

// Two requests compute the same block at once, and the one that goes on stands behind the other's.
TEST(PrefixCache, WhatStandsBehindAnEvictedBlockIsFreedWithIt) {
  BlockManager blocks(4);
  const auto root = blocks.cache().TakeRoot("");
  const auto tokens = Count(0, 48);
  BlockTable a, b;
  ASSERT_TRUE(Grow(blocks, &a, 16) && Grow(blocks, &b, 32));
  int64_t published = 0;
  auto content = root;
  blocks.Publish(a, std::span(tokens).first(16), root, &published, &content);
  published = 0, content = root;
  blocks.Publish(b, std::span(tokens).first(32), root, &published, &content);
  EXPECT_EQ(published, 2);
  EXPECT_TRUE(blocks.cache().Holds(a[0]) && !blocks.cache().Holds(b[0]) && blocks.cache().Holds(b[1]));
  const int32_t evicted = a[0];
  blocks.Shrink(&a, 0);
  BlockTable other;
  ASSERT_TRUE(Grow(blocks, &other, 32));  // takes the last block that was never used, and evicts one
  EXPECT_EQ(other[1], evicted);
  EXPECT_EQ(blocks.evictions(), 2);
  EXPECT_EQ(blocks.cache().size(), 0);
  EXPECT_EQ(blocks.free_blocks(), 0);
  // The request that goes on caches its own blocks now.
  blocks.Shrink(&other, 0);
  ASSERT_TRUE(Grow(blocks, &b, 48));
  blocks.Publish(b, tokens, root, &published, &content);
  EXPECT_EQ(published, 3);
  EXPECT_EQ(blocks.CountCached(tokens, root), 3);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.cached_free_blocks(), 3);
}

TEST(PrefixCache, BlocksBehindAnEvictedOneAreTakenNext) {
  BlockManager blocks(6);
  const auto root = blocks.cache().TakeRoot("");
  const auto tokens = Count(0, 48), others = Count(100, 48);
  BlockTable a, b;
  ASSERT_TRUE(Grow(blocks, &a, 48));
  Publish(blocks, a, tokens, root);
  ASSERT_TRUE(Grow(blocks, &b, 48));
  Publish(blocks, b, others, root);
  const BlockTable chain = a;
  blocks.Shrink(&a, 0);
  blocks.Shrink(&b, 0);
  EXPECT_EQ(blocks.cached_free_blocks(), 6);
  blocks.Uncache({chain[0]});
  EXPECT_EQ(blocks.cached_free_blocks(), 3);
  EXPECT_EQ(blocks.free_blocks(), 6);
  BlockTable c;
  ASSERT_TRUE(Grow(blocks, &c, 48));
  EXPECT_EQ(blocks.evictions(), 0) << "uncached ones go first";
  EXPECT_EQ(blocks.CountCached(others, root), 3);
}

TEST(PrefixCache, SaltsAreForgottenWithTheirLastBlock) {
  BlockManager blocks(2);
  const auto root = blocks.cache().TakeRoot("salt");
  const auto tokens = Count(0, 16);
  BlockTable table;
  ASSERT_TRUE(Grow(blocks, &table, 16));
  Publish(blocks, table, tokens, root);
  blocks.cache().DropRoot(root);
  EXPECT_EQ(blocks.cache().TakeRoot("salt"), root) << "a block still stands behind it";
  blocks.cache().DropRoot(root);
  blocks.Uncache(table);
  EXPECT_NE(blocks.cache().TakeRoot("salt"), root);
}

TEST(BlockManager, HoldsAreReleasedOrGivenUpTheOldestFirst) {
  BlockManager blocks(6);
  const std::vector<int32_t> tokens = Count(0, 32);
  BlockTable a, b;
  ASSERT_TRUE(Grow(blocks, &a, 32));
  const PrefixCache::Content root = blocks.cache().TakeRoot("");
  Publish(blocks, a, tokens, root);
  ASSERT_TRUE(Grow(blocks, &b, 48));
  const int64_t shared = blocks.Hold(blocks.Share(a)), other = blocks.Hold(b);
  EXPECT_EQ(blocks.held_blocks(), 5);
  EXPECT_EQ(*blocks.Held(shared), a);
  blocks.Shrink(&a, 0);
  EXPECT_EQ(blocks.free_blocks(), 1) << "held blocks are not free";
  BlockTable c;
  EXPECT_FALSE(Grow(blocks, &c, 32));
  EXPECT_TRUE(blocks.GiveUpHold());
  EXPECT_EQ(blocks.Held(shared), nullptr);
  EXPECT_EQ(blocks.CountCached(tokens, root), 2) << "they are found until they are evicted";
  EXPECT_TRUE(Grow(blocks, &c, 32));
  EXPECT_FALSE(blocks.ReleaseHold(shared)) << "it is gone";
  EXPECT_TRUE(blocks.TakeHeld(shared).empty());
  EXPECT_EQ(blocks.held_blocks(), 3);
  EXPECT_TRUE(blocks.ReleaseHold(other));
  EXPECT_FALSE(blocks.GiveUpHold());
  blocks.Shrink(&c, 0);
  EXPECT_EQ(blocks.free_blocks(), 6);
  blocks.cache().DropRoot(root);
}

}  // namespace
}  // namespace celer
