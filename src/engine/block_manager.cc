#include "engine/block_manager.h"

#include "core/check.h"

namespace celer {

BlockManager::BlockManager(int64_t blocks, int64_t block_size)
    : block_size_(block_size), taken_(static_cast<size_t>(blocks), false) {
  CELER_CHECK_GT(block_size, 0);
  for (int64_t i = blocks - 1; i >= 0; --i) free_.push_back(static_cast<int32_t>(i));
}

bool BlockManager::Grow(std::vector<int32_t>* table, int64_t tokens) {
  const int64_t missing = BlocksFor(tokens) - static_cast<int64_t>(table->size());
  if (missing > free_blocks()) return false;
  for (int64_t i = 0; i < missing; ++i) {
    const int32_t block = free_.back();
    free_.pop_back();
    taken_[static_cast<size_t>(block)] = true;
    table->push_back(block);
  }
  return true;
}

void BlockManager::Shrink(std::vector<int32_t>* table, int64_t tokens) {
  while (static_cast<int64_t>(table->size()) > BlocksFor(tokens)) {
    const int32_t block = table->back();
    CELER_CHECK(taken_[static_cast<size_t>(block)]);
    taken_[static_cast<size_t>(block)] = false;
    free_.push_back(block);
    table->pop_back();
  }
}

}  // namespace celer
