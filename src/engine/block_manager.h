// Hands out the blocks of the KV pool. A block has one owner: a request that goes on from another takes that
// one's table over.
#pragma once

#include <cstdint>
#include <vector>

namespace celer {

class BlockManager {
 public:
  BlockManager(int64_t blocks, int64_t block_size);

  int64_t block_size() const { return block_size_; }
  int64_t blocks() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  // Makes the table long enough for `tokens`; false (and no change) when there are not enough free blocks.
  bool Grow(std::vector<int32_t>* table, int64_t tokens);
  // Gives back the blocks behind the first `tokens`.
  void Shrink(std::vector<int32_t>* table, int64_t tokens);

 private:
  int64_t block_size_;
  std::vector<int32_t> free_;  // a stack: the block freed last is the one most likely in cache
  std::vector<bool> taken_;    // per block
};

}  // namespace celer
