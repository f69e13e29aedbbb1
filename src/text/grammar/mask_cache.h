// The token masks of items, computed by walking the token trie, and cached.
//
// Two layers. What a state allows within its own rule is context-independent: it is computed once, together
// with the trie nodes at which the rule ends ("pops"). What follows a pop is context-dependent: it depends on
// as many frames as the tokens below it reach, and is cached by the states of just those frames. So all
// strings of a schema share one large mask, and differ in the few tokens that hold a closing quote.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/stack.h"
#include "text/grammar/token_table.h"

namespace celer::grammar {

class TokenSet {
 public:
  TokenSet() = default;
  TokenSet(std::span<const int32_t> ids, size_t words);  // takes whichever form is smaller
  void Remove(std::span<const int32_t> ids);             // only from a large set
  bool is_large() const { return !words_.empty(); }
  void AddTo(std::span<uint32_t> bits) const;
  size_t bytes() const { return ids_.size() * sizeof(int32_t) + words_.size() * sizeof(uint32_t); }
  uint64_t steps() const { return ids_.size() + words_.size() / 8; }  // of AddTo()

 private:
  std::vector<int32_t> ids_;
  std::vector<uint32_t> words_;
};

class MaskCache {
 public:
  MaskCache(const Automaton& automaton, std::shared_ptr<const TokenTable> table, size_t max_bytes)
      : automaton_(automaton), table_(std::move(table)), max_bytes_(max_bytes) {}

  // Computes the masks of states by themselves, until that many steps are spent.
  void Precompute(uint64_t max_steps);
  // Adds the tokens that the item allows. `frames` are those of its answer. False: that would take more than
  // the effort allows; some tokens are missing.
  bool AddTokens(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits,
                 Effort& effort) const;

  const TokenTable& table() const { return *table_; }
  size_t bytes() const;

 private:
  struct Local {
    TokenSet tokens;                  // allowed whatever the stack is
    std::vector<uint32_t> pops = {};  // trie nodes with children at which the rule may have ended
    uint32_t height = 0;
    // In a bounded repetition: how many copies each token and each pop takes, so that the masks of later
    // places follow from this one. Tokens are sorted by it; `first_with[n]` is the first that takes n copies
    // or more.
    bool counted = false;
    std::vector<int32_t> by_copies = {};
    std::vector<uint32_t> first_with = {};
    std::vector<uint16_t> pop_copies = {};
    size_t bytes() const;
  };
  struct InContext {
    TokenSet tokens;  // allowed below the pops
    uint32_t height = 0;
  };
  using LocalPointer = std::shared_ptr<const Local>;
  using InContextPointer = std::shared_ptr<const InContext>;
  // The state, and the classes of the frames that matter.
  using Key = std::vector<uint32_t>;
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    uint32_t count;  // of frames that matter; 0: a mask by itself
    LocalPointer local;
    InContextPointer context;
    size_t bytes;
  };
  using Entries = std::list<Entry>;

  // Null: beyond the effort.
  LocalPointer ComputeLocal(uint32_t state, Effort& effort) const;
  LocalPointer WithFewerCopies(const Local& base, uint32_t copies_left) const;
  LocalPointer FindLocal(uint32_t state, Effort& effort) const;
  InContextPointer FindInContext(const Item& item, std::span<const Frame> frames, const Local& local,
                                 Effort& effort) const;
  // False: too long to be kept.
  bool AppendKey(uint32_t frame, uint32_t count, std::span<const Frame> frames, Key* key) const;
  bool AddDirectly(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits,
                   Effort& effort) const;
  // With the lock held.
  void Insert(Entry entry) const;
  void EvictLeastRecentlyUsed() const;

  const Automaton& automaton_;
  std::shared_ptr<const TokenTable> table_;
  size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable Entries entries_;  // the last used first. Masks in use stay alive with their users
  mutable std::unordered_map<uint32_t, Entries::iterator> locals_;
  mutable std::unordered_map<Key, Entries::iterator, KeyHash> contexts_;
  // By state: how many frames matter in the keys of contexts_, and in how many of them. Few numbers occur for
  // one state.
  struct Depth {
    uint32_t count, keys;
  };
  mutable std::unordered_map<uint32_t, std::vector<Depth>> depths_;
  mutable size_t bytes_ = 0;
};

}  // namespace celer::grammar
