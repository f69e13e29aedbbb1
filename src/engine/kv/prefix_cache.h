// Finds blocks of the KV by what is in them: a full block is known by its tokens and by all that stands
// before it, so whoever begins with the same tokens can use it.
//
// A chain of full blocks has a name, its Content. Names are never used twice, and what is found is compared
// token by token, so two prompts are never mixed up, whatever their hashes are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/llm/kv_block.h"

namespace celer {

class PrefixCache {
 public:
  using Content = int64_t;
  using BlockTokens = std::span<const int32_t, kKvBlockTokens>;
  static constexpr int32_t kNone = -1;

  PrefixCache();

  // The empty chain for a salt. Each call must be matched by one of DropRoot().
  Content TakeRoot(std::string_view salt);
  void DropRoot(Content root);

  struct Found {
    int32_t block = kNone;
    Content content = 0;
  };
  Found Find(Content before, BlockTokens tokens) const;
  // `block` holds `tokens` behind `before`. If another block is known for that, it stays so. Returns the
  // chain's name either way.
  Content Insert(Content before, BlockTokens tokens, int32_t block);
  void Erase(int32_t block);  // also if it is not known
  bool Holds(int32_t block) const {
    return static_cast<size_t>(block) < entries_.size() && entries_[static_cast<size_t>(block)].content != 0;
  }
  int64_t size() const { return size_; }

 private:
  struct Entry {
    Content content = 0;  // 0: nothing
    Content before = 0;
    uint64_t hash = 0;
    int32_t tokens[kKvBlockTokens] = {};
  };
  struct Root {
    std::string salt;
    int64_t users = 0;  // TakeRoot()s, and blocks that begin a chain with it
  };
  uint64_t HashOf(Content before, BlockTokens tokens) const;
  void LeaveRoot(Content root);

  std::vector<Entry> entries_;                          // per block, up to the last that was ever known
  std::unordered_multimap<uint64_t, int32_t> by_hash_;  // to the block
  std::unordered_map<std::string, Content> root_of_;
  std::unordered_map<Content, Root> roots_;
  uint64_t seed_;  // nobody can prepare prompts that all have one hash
  Content next_ = 1;
  int64_t size_ = 0;
};

}  // namespace celer
