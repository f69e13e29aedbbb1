// Decides who has which block of the KV; the runner does what it decides.
//
// A block may be shared by several tables. Nobody writes to a shared block, nor to one that the prefix cache
// knows: whoever wants to gets a copy. A block that no table has any more can be taken for something else,
// least recently used first, and until then the prefix cache still finds it.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "engine/kv/prefix_cache.h"
#include "kernels/llm/kv_block.h"

namespace celer {

using BlockTable = std::vector<int32_t>;

// What the runner does before the step, in this order.
struct BlockMove {
  enum class Kind : uint8_t { kCopy, kSwapOut, kSwapIn } kind = Kind::kCopy;
  BlockCopy blocks = {};
};

class BlockManager {
 public:
  explicit BlockManager(int64_t blocks, int64_t host_blocks = 0);

  int64_t blocks() const { return total_; }
  int64_t free_blocks() const { return free_; }  // those that the cache knows among them
  int64_t host_blocks() const { return host_blocks_; }
  int64_t free_host_blocks() const { return std::ssize(free_host_) + host_blocks_ - used_host_; }
  int64_t evictions() const { return evictions_; }
  int64_t cached_free_blocks() const { return cached_free_; }
  int users(int32_t block) const { return blocks_[static_cast<size_t>(block)].users; }
  const PrefixCache& cache() const { return cache_; }
  PrefixCache& cache() { return cache_; }

  // Positions [first, end) of a table, which a step writes.
  struct Write {
    BlockTable* table;
    int64_t first, end;
  };
  // Blocks that Prepare() with the same writes takes, exactly. Of the tables that share a block and all write
  // to it, the last one keeps it: W beams that share their last block take W - 1, not W.
  int64_t Missing(std::span<const Write> writes) const;
  // Makes these positions writable: adds blocks, and puts fresh ones in the place of shared ones, which
  // `moves` copies (copy-on-write). All of them or, if there are too few blocks, none: false, and no change.
  bool Prepare(std::span<const Write> writes, std::vector<BlockMove>* moves);
  bool Prepare(BlockTable* table, int64_t first, int64_t end, std::vector<BlockMove>* moves) {
    const Write write{table, first, end};
    return Prepare({&write, 1}, moves);
  }
  // Gives back the blocks behind the first `tokens`.
  void Shrink(BlockTable* table, int64_t tokens);
  // A table of its first `blocks` blocks, which both use from then on.
  BlockTable Share(const BlockTable& table, size_t blocks);
  BlockTable Share(const BlockTable& table) { return Share(table, table.size()); }

  // Adds blocks of the cache to an empty table, for as many of the leading full blocks of `tokens` as it
  // knows behind `content`, which becomes the name of the whole.
  void Attach(BlockTable* table, std::span<const int32_t> tokens, PrefixCache::Content* content);
  // How many blocks Attach() would find.
  int64_t CountCached(std::span<const int32_t> tokens, PrefixCache::Content content) const;
  // Nobody is to find these blocks any more.
  void Forget(const BlockTable& table);

  // Host blocks; none if there are too few.
  BlockTable TakeHost(int64_t count);
  void GiveHost(BlockTable* table);

 private:
  static constexpr int32_t kEnd = -1;
  struct Block {
    int users = 0;
    int32_t before = kEnd, after = kEnd;  // in the list of free blocks
  };

  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  bool Writable(int32_t block) const { return users(block) == 1 && !cache_.Holds(block); }
  int32_t Take();
  void Use(int32_t block);
  void Drop(int32_t block);
  void Unlink(int32_t block);

  int64_t total_;
  std::vector<Block> blocks_;           // those that were ever taken: a large pool costs what is used of it
  int32_t first_ = kEnd, last_ = kEnd;  // the list of free blocks: the first is taken first
  int64_t free_, cached_free_ = 0;
  PrefixCache cache_;
  int64_t host_blocks_;
  int64_t used_host_ = 0;           // that were ever taken, from 0 on
  std::vector<int32_t> free_host_;  // of those
  int64_t evictions_ = 0;
};

}  // namespace celer
