// The tokens that an item allows, computed by walking the token trie, and kept.
//
// Two layers. What a state allows within its own rule does not depend on the stack: it is computed once,
// together with the trie nodes at which the rule ends ("pops"). What follows a pop depends on as many frames
// as the tokens below it reach; it is kept by the states of just those frames. So all strings of a schema
// share one large mask, and differ in the few tokens that hold a closing quote.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/token_table.h"
#include "text/grammar/walker.h"

namespace celer::grammar {

class TokenSet {
 public:
  TokenSet() = default;
  TokenSet(std::span<const int32_t> ids, size_t words);  // takes whichever form is smaller
  void Remove(std::span<const int32_t> ids);             // only from a large set
  bool is_large() const { return !words_.empty(); }
  void AddTo(std::span<uint32_t> bits) const;
  size_t bytes() const { return ids_.size() * sizeof(int32_t) + words_.size() * sizeof(uint32_t); }

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
  // Adds the tokens that the item allows. `frames` are those of its answer.
  void AddTokens(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits) const;

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
  struct KeyHash {
    size_t operator()(const std::vector<uint32_t>& key) const;
  };
  // By the number of frames that matter; few numbers occur for one state.
  using ByDepth = std::unordered_map<std::vector<uint32_t>, InContextPointer, KeyHash>;

  LocalPointer ComputeLocal(uint32_t state, uint64_t* steps) const;
  LocalPointer WithFewerCopies(const Local& base, uint32_t copies_left) const;
  void MakeRoom() const;
  LocalPointer FindLocal(uint32_t state) const;
  InContextPointer FindInContext(const Item& item, std::span<const Frame> frames, const Local& local) const;
  void AddDirectly(const Item& item, std::span<const Frame> frames, std::span<uint32_t> bits) const;

  const Automaton& automaton_;
  std::shared_ptr<const TokenTable> table_;
  size_t max_bytes_;
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<uint32_t, LocalPointer> locals_;
  mutable std::unordered_map<uint32_t, std::vector<uint32_t>> depths_;  // of the keys in contexts_, by state
  mutable ByDepth contexts_;
  mutable size_t bytes_ = 0;
};

}  // namespace celer::grammar
