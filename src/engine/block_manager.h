// Hands out the blocks of the KV pool. Blocks are reference counted, so that sequences can share a prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace celer {

class BlockManager {
 public:
  BlockManager(int64_t blocks, int64_t block_size);

  int64_t block_size() const { return block_size_; }
  int64_t blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  // Makes the table long enough for `tokens`; false (and no change) when there are not enough free blocks.
  bool Grow(std::vector<int32_t>* table, int64_t tokens);
  // Gives back the blocks behind the first `tokens`.
  void Shrink(std::vector<int32_t>* table, int64_t tokens);
  void Share(int32_t block);  // one more owner

 private:
  void Drop(int32_t block);

  int64_t block_size_;
  std::vector<int32_t> free_;        // a stack: the block freed last is the one most likely in cache
  std::vector<int32_t> references_;  // per block
};

}  // namespace celer
