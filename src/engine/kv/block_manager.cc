#include "engine/kv/block_manager.h"

#include <algorithm>
#include <utility>

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
    blocks_.emplace_back().ref_count = 1;
    --free_;
    return static_cast<int32_t>(blocks_.size() - 1);
  }
  const int32_t block = first_;
  evictions_ += LeaveCache(block);
  Unlink(block);
  At(block).ref_count = 1;
  return block;
}

// Of a chain the last block is freed first, so it is evicted first, unless another block with the same tokens was
// computed meanwhile: then blocks that are still used, or were used later, may stand behind an evicted one.
int64_t BlockManager::LeaveCache(int32_t block) {
  const std::span<const int32_t> gone = cache_.Erase(block);
  for (const int32_t one : gone) {
    if (ref_count(one) > 0) continue;
    --cached_free_;
    Unlink(one);
    PushFront(one);
  }
  return std::ssize(gone);
}

void BlockManager::PushFront(int32_t block) {
  Block& b = At(block);
  ++free_;
  b.after = first_;
  (first_ == kEnd ? last_ : At(first_).before) = block;
  first_ = block;
}

void BlockManager::AddRef(int32_t block) {
  if (At(block).ref_count++ == 0) Unlink(block);
}

// Cached blocks go to the end of the free list. Others go to its front: the block freed last is most likely
// still in a processor's cache.
void BlockManager::Unref(int32_t block) {
  Block& b = At(block);
  CELER_CHECK_GT(b.ref_count, 0);
  if (--b.ref_count > 0) return;
  if (!cache_.Holds(block)) return PushFront(block);
  ++free_;
  ++cached_free_;
  b.before = last_;
  (last_ == kEnd ? first_ : At(last_).after) = block;
  last_ = block;
}

int64_t BlockManager::Missing(std::span<const Write> writes) const {
  int64_t missing = 0;
  std::vector<int32_t> shared;  // an entry for each table that writes to it
  for (const auto& [table, first, end] : writes) {
    const auto have = static_cast<int64_t>(table->size()), need = KvBlocksFor(end);
    missing += std::max<int64_t>(need - have, 0);
    for (int64_t i = first / kKvBlockTokens; i < std::min(have, need); ++i)
      if (const int32_t block = (*table)[i]; !Writable(block)) shared.push_back(block);
  }
  std::sort(shared.begin(), shared.end());
  for (size_t i = 0; i < shared.size();) {
    const int32_t block = shared[i];
    int writers = 0;
    for (; i < shared.size() && shared[i] == block; ++i) ++writers;
    // Once the other writers have their copies, the last one writes in place.
    missing += writers == ref_count(block) && !cache_.Holds(block) ? writers - 1 : writers;
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
      Unref(block);
      block = fresh;
    }
    while (static_cast<int64_t>(table->size()) < need) table->push_back(Take());
  }
  return true;
}

void BlockManager::Shrink(BlockTable* table, int64_t tokens) {
  // From the end: of a chain, the last block should be evicted first.
  while (static_cast<int64_t>(table->size()) > KvBlocksFor(tokens)) {
    Unref(table->back());
    table->pop_back();
  }
}

BlockTable BlockManager::Share(const BlockTable& table, size_t blocks) {
  CELER_CHECK_LE(blocks, table.size());
  BlockTable shared(table.begin(), table.begin() + static_cast<int64_t>(blocks));
  for (const int32_t block : shared) AddRef(block);
  return shared;
}

void BlockManager::Attach(BlockTable* table, std::span<const int32_t> tokens, PrefixCache::Content* content) {
  CELER_CHECK(table->empty());
  for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens) {
    const auto found = cache_.Find(*content, tokens.subspan(at).first<kKvBlockTokens>());
    if (found.block == PrefixCache::kNone) return;
    AddRef(found.block);
    table->push_back(found.block);
    *content = found.content;
  }
}

void BlockManager::Publish(const BlockTable& table, std::span<const int32_t> tokens,
                           PrefixCache::Content root, int64_t* published, PrefixCache::Content* content) {
  while ((*published + 1) * kKvBlockTokens <= std::ssize(tokens)) {
    const auto block = static_cast<size_t>(*published);
    *content =
        cache_.Insert(*content, tokens.subspan(block * kKvBlockTokens).first<kKvBlockTokens>(), table[block]);
    ++*published;
    if (*content != PrefixCache::kGone) continue;
    // What it found in the cache instead of a block of its own was evicted. Its own go there now.
    *published = 0;
    *content = root;
  }
}

int64_t BlockManager::CachedTokens(std::span<const int32_t> tokens, PrefixCache::Content content,
                                   FunctionRef<bool(PrefixCache::Content)> usable) const {
  size_t found = 0;
  for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens) {
    const auto next = cache_.Find(content, tokens.subspan(at).first<kKvBlockTokens>());
    if (next.block == PrefixCache::kNone) break;
    content = next.content;
    if (usable(content)) found = at + kKvBlockTokens;
  }
  return static_cast<int64_t>(found);
}

void BlockManager::Uncache(const BlockTable& table) {
  for (const int32_t block : table) LeaveCache(block);
}

void BlockManager::UncacheAll() {
  cache_.Clear();
  cached_free_ = 0;
}

int64_t BlockManager::Hold(BlockTable table) {
  held_blocks_ += std::ssize(table);
  holds_.emplace(next_hold_, std::move(table));
  return next_hold_++;
}

const BlockTable* BlockManager::Held(int64_t hold) const {
  const auto found = holds_.find(hold);
  return found == holds_.end() ? nullptr : &found->second;
}

BlockTable BlockManager::TakeHeld(int64_t hold) {
  const auto found = holds_.find(hold);
  if (found == holds_.end()) return {};
  BlockTable table = std::move(found->second);
  held_blocks_ -= std::ssize(table);
  holds_.erase(found);
  return table;
}

bool BlockManager::ReleaseHold(int64_t hold) {
  if (!holds_.contains(hold)) return false;
  BlockTable table = TakeHeld(hold);
  Shrink(&table, 0);
  return true;
}

bool BlockManager::GiveUpHold() {
  return !holds_.empty() && ReleaseHold(holds_.begin()->first);
}

std::vector<const BlockTable*> BlockManager::holds() const {
  std::vector<const BlockTable*> tables;
  for (const auto& [hold, table] : holds_) tables.push_back(&table);
  return tables;
}

BlockTable BlockManager::AllocateHost(int64_t count) {
  if (count > free_host_blocks()) return {};
  const int64_t again = std::min(count, std::ssize(free_host_));
  BlockTable out(free_host_.end() - again, free_host_.end());
  free_host_.resize(free_host_.size() - static_cast<size_t>(again));
  while (std::ssize(out) < count) out.push_back(static_cast<int32_t>(used_host_++));
  return out;
}

void BlockManager::FreeHost(BlockTable* table) {
  free_host_.insert(free_host_.end(), table->begin(), table->end());
  CELER_CHECK_LE(free_host_blocks(), host_blocks_);
  table->clear();
}

}  // namespace celer
