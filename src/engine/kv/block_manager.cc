#include "engine/kv/block_manager.h"

#include <algorithm>

#include "base/check.h"

namespace celer {

BlockManager::BlockManager(int64_t blocks, int64_t host_blocks)
    : total_(blocks), free_(blocks), host_blocks_(host_blocks) {}

void BlockManager::Unlink(int32_t block) {
  Block& b = At(block);
  (b.before == kEnd ? first_ : At(b.before).after) = b.after;
  (b.after == kEnd ? last_ : At(b.after).before) = b.before;
  b.before = b.after = kEnd;
  --free_;
  cached_free_ -= cache_.Holds(block) ? 1 : 0;
}

int32_t BlockManager::Take() {
  CELER_CHECK_GT(free_, 0);
  // Uncached free blocks first, then never-used ones, then evict the least recently used.
  if ((first_ == kEnd || cache_.Holds(first_)) && static_cast<int64_t>(blocks_.size()) < total_) {
    blocks_.emplace_back().users = 1;
    --free_;
    return static_cast<int32_t>(blocks_.size() - 1);
  }
  const int32_t block = first_;
  Unlink(block);
  evictions_ += cache_.Holds(block) ? 1 : 0;
  cache_.Erase(block);
  At(block).users = 1;
  return block;
}

void BlockManager::Use(int32_t block) {
  if (At(block).users++ == 0) Unlink(block);
}

// What the cache knows is taken last. The rest is taken at once: the block freed last is the one most likely
// in a processor's cache.
void BlockManager::Drop(int32_t block) {
  Block& b = At(block);
  CELER_CHECK_GT(b.users, 0);
  if (--b.users > 0) return;
  ++free_;
  if (cache_.Holds(block)) {
    ++cached_free_;
    b.before = last_;
    (last_ == kEnd ? first_ : At(last_).after) = block;
    last_ = block;
  } else {
    b.after = first_;
    (first_ == kEnd ? last_ : At(first_).before) = block;
    first_ = block;
  }
}

int64_t BlockManager::Missing(std::span<const Write> writes) const {
  int64_t missing = 0;
  std::vector<int32_t> shared;  // once for each table that writes to it
  for (const auto& [table, first, end] : writes) {
    const auto have = static_cast<int64_t>(table->size()), need = KvBlocksFor(end);
    missing += std::max<int64_t>(need - have, 0);
    for (int64_t i = first / kKvBlockTokens; i < std::min(have, need); ++i)
      if (const int32_t block = (*table)[static_cast<size_t>(i)]; !Writable(block)) shared.push_back(block);
  }
  std::sort(shared.begin(), shared.end());
  for (size_t i = 0; i < shared.size();) {
    const int32_t block = shared[i];
    int writers = 0;
    for (; i < shared.size() && shared[i] == block; ++i) ++writers;
    // Once the others have their copies, the last of its users writes in place.
    missing += writers == users(block) && !cache_.Holds(block) ? writers - 1 : writers;
  }
  return missing;
}

bool BlockManager::Prepare(std::span<const Write> writes, std::vector<BlockMove>* moves) {
  if (Missing(writes) > free_) return false;
  for (const auto& [table, first, end] : writes) {
    const int64_t need = KvBlocksFor(end);
    for (auto i = static_cast<size_t>(first / kKvBlockTokens);
         i < std::min(table->size(), static_cast<size_t>(need)); ++i) {
      int32_t& block = (*table)[i];
      if (Writable(block)) continue;
      const int32_t fresh = Take();
      moves->push_back({BlockMove::Kind::kCopy, {block, fresh}});
      Drop(block);
      block = fresh;
    }
    while (static_cast<int64_t>(table->size()) < need) table->push_back(Take());
  }
  return true;
}

void BlockManager::Shrink(BlockTable* table, int64_t tokens) {
  // From the end: of a chain, the last block is the first that can be missed.
  while (static_cast<int64_t>(table->size()) > KvBlocksFor(tokens)) {
    Drop(table->back());
    table->pop_back();
  }
}

BlockTable BlockManager::Share(const BlockTable& table, size_t blocks) {
  CELER_CHECK_LE(blocks, table.size());
  BlockTable shared(table.begin(), table.begin() + static_cast<int64_t>(blocks));
  for (const int32_t block : shared) Use(block);
  return shared;
}

void BlockManager::Attach(BlockTable* table, std::span<const int32_t> tokens, PrefixCache::Content* content) {
  CELER_CHECK(table->empty());
  for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens) {
    const auto found = cache_.Find(*content, tokens.subspan(at).first<kKvBlockTokens>());
    if (found.block == PrefixCache::kNone) return;
    Use(found.block);
    table->push_back(found.block);
    *content = found.content;
  }
}

int64_t BlockManager::CountCached(std::span<const int32_t> tokens, PrefixCache::Content content) const {
  int64_t count = 0;
  for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens, ++count) {
    const auto found = cache_.Find(content, tokens.subspan(at).first<kKvBlockTokens>());
    if (found.block == PrefixCache::kNone) break;
    content = found.content;
  }
  return count;
}

void BlockManager::Forget(const BlockTable& table) {
  for (const int32_t block : table) {
    if (users(block) == 0 && cache_.Holds(block)) --cached_free_;
    cache_.Erase(block);
  }
}

BlockTable BlockManager::TakeHost(int64_t count) {
  if (count > free_host_blocks()) return {};
  const int64_t again = std::min(count, std::ssize(free_host_));
  BlockTable out(free_host_.end() - again, free_host_.end());
  free_host_.resize(free_host_.size() - static_cast<size_t>(again));
  while (std::ssize(out) < count) out.push_back(static_cast<int32_t>(used_host_++));
  return out;
}

void BlockManager::GiveHost(BlockTable* table) {
  free_host_.insert(free_host_.end(), table->begin(), table->end());
  CELER_CHECK_LE(free_host_blocks(), host_blocks_);
  table->clear();
}

}  // namespace celer
