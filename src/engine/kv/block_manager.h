// Allocates the blocks of the paged KV; the runner copies and swaps what it decides.
//
// Blocks are reference-counted and shared by several tables. A shared block, or one in the prefix cache, is
// never written: the writer gets a copy (copy-on-write). A block whose reference count is 0 is free. A free
// block that the prefix cache holds can still be found, until it is evicted, least recently used first.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "engine/kv/prefix_cache.h"
#include "kernels/llm/kv_block.h"

namespace celer {

using BlockTable = std::vector<int32_t>;

// What the runner does before the step, in this order.
struct BlockMove {
  enum class Kind : uint8_t { kCopy, kSwapOut, kSwapIn, kCopyState } kind = Kind::kCopy;
  BlockCopy blocks = {};  // of kCopyState slots of states (state_slots.h)
};

class BlockManager {
 public:
  explicit BlockManager(int64_t blocks, int64_t host_blocks = 0);

  int64_t blocks() const { return total_; }
  int64_t free_blocks() const { return free_; }  // cached ones among them
  int64_t host_blocks() const { return host_blocks_; }
  int64_t free_host_blocks() const { return std::ssize(free_host_) + host_blocks_ - used_host_; }
  int64_t evictions() const { return evictions_; }
  int64_t cached_free_blocks() const { return cached_free_; }
  int ref_count(int32_t block) const { return blocks_[block].ref_count; }
  const PrefixCache& cache() const { return cache_; }
  PrefixCache& cache() { return cache_; }

  // Positions [first, end) of a table, which a step writes.
  struct Write {
    BlockTable* table;
    int64_t first, end;
  };
  // The blocks that Prepare() with the same writes allocates, unless what it evicts makes a block its writer's
  // own: then it takes fewer. Of the tables that share a block and all write to it, the last one keeps it: W beams
  // that share their last block take W - 1, not W.
  int64_t Missing(std::span<const Write> writes) const;
  // Makes these positions writable: allocates blocks, and replaces shared ones by fresh ones, which `moves`
  // copies (copy-on-write). False, and no change, if there are too few free blocks.
  bool Prepare(std::span<const Write> writes, std::vector<BlockMove>* moves);
  bool Prepare(BlockTable* table, int64_t first, int64_t end, std::vector<BlockMove>* moves) {
    const Write write{table, first, end};
    return Prepare({&write, 1}, moves);
  }
  // Releases the blocks behind the first `tokens`.
  void Shrink(BlockTable* table, int64_t tokens);
  // A second table that shares the first `blocks` blocks.
  BlockTable Share(const BlockTable& table, size_t blocks);
  BlockTable Share(const BlockTable& table) { return Share(table, table.size()); }

  // Fills an empty table from the prefix cache, with as many of the leading full blocks of `tokens` as are
  // cached behind `content`, which becomes the name of the whole chain.
  void Attach(BlockTable* table, std::span<const int32_t> tokens, PrefixCache::Content* content);
  // How many blocks Attach() would find.
  int64_t CountCached(std::span<const int32_t> tokens, PrefixCache::Content content) const {
    return cache_.CountCached(tokens, content);
  }
  // Puts the table's full blocks of `tokens`, which are computed, into the prefix cache, from `*published` on;
  // `*content` names the chain of those before.
  void Publish(const BlockTable& table, std::span<const int32_t> tokens, PrefixCache::Content root,
               int64_t* published, PrefixCache::Content* content);
  // How many leading tokens of them there are a cached chain for whose last block `usable` says that it will do.
  int64_t CachedTokens(std::span<const int32_t> tokens, PrefixCache::Content content,
                       FunctionRef<bool(PrefixCache::Content)> usable) const;
  // Removes these blocks from the prefix cache, with all that are found through them.
  void Uncache(const BlockTable& table);
  void UncacheAll();

  // Tables that are kept for somebody who is no sequence, such as a replica that fetches them. A sequence that needs the
  // room goes first: then the oldest is given up (Scheduler).
  int64_t Hold(BlockTable table);              // takes the table's references; returns its number, from 1 on
  const BlockTable* Held(int64_t hold) const;  // null: it was given up or released
  BlockTable TakeHeld(int64_t hold);           // with its references; empty likewise
  bool ReleaseHold(int64_t hold);              // false likewise
  bool GiveUpHold();                           // the oldest; false: there is none
  int64_t held_blocks() const { return held_blocks_; }  // one counts as often as it is held
  std::vector<const BlockTable*> holds() const;

  // Host blocks; an empty table if there are too few.
  BlockTable AllocateHost(int64_t count);
  void FreeHost(BlockTable* table);

 private:
  static constexpr int32_t kEnd = -1;
  struct Block {
    int ref_count = 0;
    int32_t before = kEnd, after = kEnd;  // in the list of free blocks
  };

  Block& At(int32_t block) { return blocks_[block]; }
  bool Writable(int32_t block) const { return ref_count(block) == 1 && !cache_.Holds(block); }
  int32_t Take();
  int64_t LeaveCache(int32_t block);  // returns how many left the cache
  void PushFront(int32_t block);      // to the list of free blocks
  void AddRef(int32_t block);
  void Unref(int32_t block);
  void Unlink(int32_t block);

  int64_t total_;
  std::vector<Block> blocks_;  // up to the highest ever allocated: a large pool costs what is used of it
  int32_t first_ = kEnd, last_ = kEnd;  // the free list: allocated from the front
  int64_t free_, cached_free_ = 0;
  PrefixCache cache_;
  int64_t host_blocks_;
  int64_t used_host_ = 0;           // the highest ever allocated, plus 1
  std::vector<int32_t> free_host_;  // of those
  int64_t evictions_ = 0;
  std::map<int64_t, BlockTable> holds_;
  int64_t next_hold_ = 1, held_blocks_ = 0;
};

}  // namespace celer
