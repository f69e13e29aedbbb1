// Deterministic automata over bytes and calls of rules: made from expressions by way of an NFA, and
// intersected where a schema asks for two things at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/expression.h"

namespace celer::grammar {

inline constexpr uint32_t kNoChain = ~uint32_t{0};

struct DfaEdge {
  uint8_t low, high;
  uint32_t to;
};

struct DfaCall {
  RuleId rule;
  uint32_t to;  // where it goes on after the rule
};

struct DfaState {
  std::vector<DfaEdge> edges = {};  // sorted, disjoint
  std::vector<DfaCall> calls = {};
  bool accept = false;
  // States with equal values allow the same tokens: what differs between them is further away than the
  // longest token is long.
  uint32_t mask_class = 0;
  // In a bounded repetition, a state differs from the one at an earlier place only in how many copies are
  // left: the token that takes `n` more copies is allowed if `copies_used + n <= copies`.
  uint32_t chain = kNoChain;  // which repetition
  uint32_t copies_used = 0, copies = 0;
  uint32_t base = 0;   // the same state at the first such place
  bool mixed = false;  // inside a repetition and outside of it at the same time
};

struct Dfa {
  std::vector<DfaState> states = {};  // state 0 is the start; no states: accepts nothing

  // For automata without calls.
  bool Accepts(std::string_view text) const;
};

// Which rules can match the empty text.
Result<std::vector<bool>> NullableRules(const RuleSet& rules, Budget& budget);

// The automaton of one expression. States from which no accepting state can be reached are left out (a call
// counts as possible).
Result<Dfa> MakeDfa(const RuleSet& rules, ExprId expr, const std::vector<bool>& nullable, Budget& budget);
// For expressions without calls.
Result<Dfa> MakeDfa(const RuleSet& rules, ExprId expr, Budget& budget);

enum class Combine { kAnd, kAndNot };
Result<Dfa> CombineDfas(const Dfa& a, const Dfa& b, Combine how, Budget& budget);

// Drops the states that cannot be reached or cannot reach an accepting one. `dead_rule`: calls that cannot
// return; may be empty.
void Trim(Dfa& dfa, const std::vector<bool>& dead_rule);

}  // namespace celer::grammar
