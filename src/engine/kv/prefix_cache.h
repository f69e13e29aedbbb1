// Automatic prefix caching: finds full blocks of the KV by their tokens and all tokens before them, so that
// requests with a common prefix share its blocks.
//
// A chain of full blocks has an id, its Content. Ids are never reused, and hits are compared token by token,
// so a hash collision can never mix up two prompts. A block is found through all those before it, so it leaves
// the cache with the first of them that does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/llm/kv_block.h"

namespace celer {

class KvEventLog;  // engine/kv/kv_event_log.h
struct KvChange;

// What a salt consists of, for readers of a KvEventLog.
struct KvScope {
  std::string lora_name = {};     // several: with commas
  std::string lora_content = {};  // LoraMix::key()
  int64_t lora_id = -1;           // Adapters::Info::id; -1: none, or several
  // Rope angles that depend on the length of a prompt: 0: not this one's, -1: those of long prompts, else its length.
  int64_t rope_length = 0;
  std::string cache_salt = {};
};

// All on one thread, but CountFor().
class PrefixCache {
 public:
  using Content = int64_t;
  using BlockTokens = std::span<const int32_t, kKvBlockTokens>;
  static constexpr int32_t kNone = -1;
  static constexpr Content kGone = 0;

  PrefixCache();

  // The empty chain for a salt. Each call must be matched by one of DropRoot().
  Content TakeRoot(std::string_view salt, std::shared_ptr<const KvScope> scope = nullptr);
  void DropRoot(Content root);

  struct Found {
    int32_t block = kNone;
    Content content = 0;
  };
  Found Find(Content before, BlockTokens tokens) const;
  // How many leading blocks of `tokens` are cached behind `content`.
  int64_t CountCached(std::span<const int32_t> tokens, Content content) const;
  // `block` holds `tokens` behind `before`. If another block is cached for that, it stays. Returns the
  // chain's id either way, or kGone if `before` has left the cache: then nothing is cached.
  Content Insert(Content before, BlockTokens tokens, int32_t block);
  // Returns the blocks that have left the cache: this one and all behind it, or none if it was not cached. They
  // are valid until the next call.
  std::span<const int32_t> Erase(int32_t block);
  bool Holds(int32_t block) const {
    return static_cast<size_t>(block) < entries_.size() && entries_[block].content != 0;
  }
  int64_t size() const { return size_; }
  void Clear();  // erases all
  // On any thread: how many leading blocks of `tokens` are cached for a salt.
  int64_t CountFor(std::string_view salt, std::span<const int32_t> tokens) const;

  // What is cached and erased from now on goes there, too. It outlives the cache, or the next call; null: nowhere.
  void set_log(KvEventLog* log) { log_ = log; }
  // What is cached, each block behind the one before it, as the log has it.
  void ForEach(const std::function<void(const KvChange& stored)>& visit) const;

 private:
  struct Entry {
    Content content = 0;  // 0: nothing
    Content before = 0;
    uint64_t hash = 0;
    int32_t parent = kNone;                  // the block of `before`; of a first block none
    int32_t child = kNone;                   // the first of those that follow it, a list
    int32_t next = kNone, previous = kNone;  // in the parent's list
    int32_t tokens[kKvBlockTokens] = {};
  };
  struct Root {
    std::string salt;
    int64_t ref_count = 0;  // TakeRoot()s, and blocks that begin a chain with it
    std::shared_ptr<const KvScope> scope = {};
  };
  uint64_t HashOf(Content before, BlockTokens tokens) const;
  void LeaveRoot(Content root);
  void EraseOne(int32_t block);  // which has no children
  KvChange Stored(const Entry& entry) const;

  std::vector<Entry> entries_;                          // per block, up to the highest ever cached
  std::unordered_multimap<uint64_t, int32_t> by_hash_;  // to the block
  std::unordered_map<Content, int32_t> block_of_;       // likewise
  std::map<std::string, Content, std::less<>> root_of_;
  std::unordered_map<Content, Root> roots_;
  uint64_t seed_;  // random: clients cannot prepare prompts with colliding hashes
  Content next_ = 1;
  int64_t size_ = 0;
  KvEventLog* log_ = nullptr;
  std::vector<int32_t> erased_;
  mutable std::mutex mutex_;  // of what CountFor() reads, for whoever changes it
};

}  // namespace celer
