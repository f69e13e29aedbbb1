// The pushdown automaton that a grammar runs on: the automata of its rules, laid out in tables.
//
// A position in the text is a set of items. An item is a state and a stack of frames; a frame is a return
// address: where to go on when the called rule has ended. A tail call pushes no frame, so lists written by
// right recursion do not grow the stack.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/grammar/dfa.h"
#include "text/grammar/expression.h"

namespace celer::grammar {

class Automaton {
 public:
  static constexpr uint32_t kDead = ~uint32_t{0};

  struct Call {
    uint32_t start;  // of the rule
    uint32_t to;     // kDead: the caller ends with it, so no frame is needed
  };

  // Refuses left recursion and grammars that match nothing.
  static Result<Automaton> Make(const RuleSet& rules, RuleId root, uint32_t max_depth, Budget& budget);

  uint32_t start() const { return start_; }
  uint32_t size() const { return static_cast<uint32_t>(states_.size()); }
  uint32_t Next(uint32_t state, uint8_t byte) const {
    const int32_t step = rows_[size_t{states_[state].row} * classes_ + class_of_[byte]];
    return step == kNoStep ? kDead : state + static_cast<uint32_t>(step);
  }
  // Byte classes: bytes of one class lead to the same states everywhere.
  size_t classes() const { return classes_; }
  size_t ClassOf(uint8_t byte) const { return class_of_[byte]; }
  std::span<const Call> Calls(uint32_t state) const {
    return {calls_.data() + states_[state].first_call, states_[state].call_count};
  }
  bool Accepts(uint32_t state) const { return states_[state].accept; }
  // Neither calls nor ends a rule: its epsilon closure is the item alone.
  bool IsPlain(uint32_t state) const { return states_[state].plain; }
  bool TakesBytes(uint32_t state) const { return states_[state].takes_bytes; }
  // The state that stands for all that allow the same tokens.
  uint32_t MaskClass(uint32_t state) const { return states_[state].mask_class; }
  // See DfaState: states of one bounded repetition that differ in the copies left.
  struct Repeat {
    uint32_t chain = kNoChain;
    uint32_t used = 0, copies = 0;
    uint32_t base = 0;
    bool mixed = false;
  };
  const Repeat& RepeatOf(uint32_t state) const { return repeats_[state]; }
  // How many frames must fit above the item for its rule to end at all.
  uint32_t Need(uint32_t state) const { return states_[state].need; }
  // The fewest bytes with which the rule can end.
  uint32_t Distance(uint32_t state) const { return states_[state].distance; }
  uint32_t max_depth() const { return max_depth_; }
  // The name of the rule that a state belongs to, for errors.
  const std::string& RuleOf(uint32_t state) const;
  size_t bytes() const;

 private:
  static constexpr int32_t kNoStep = INT32_MIN;

  struct State {
    uint32_t row = 0;
    uint32_t first_call = 0;
    uint32_t mask_class = 0;
    uint32_t need = 0;
    uint32_t distance = 0;
    uint16_t call_count = 0;
    bool accept = false, plain = false, takes_bytes = false;
  };

  Status FindNeeds(const std::vector<Dfa>& dfas, const std::vector<uint32_t>& offset, const RuleSet& rules,
                   RuleId root, Budget& budget);

  uint32_t start_ = 0;
  uint32_t max_depth_ = 0;
  std::vector<State> states_;
  std::vector<Repeat> repeats_;  // by state
  std::vector<Call> calls_;
  std::vector<std::pair<uint32_t, std::string>> rules_;  // first state and name, in order
  size_t classes_ = 0;
  std::array<uint8_t, 256> class_of_ = {};
  std::vector<int32_t> rows_;  // relative to the state: copies of one piece share their rows
};

}  // namespace celer::grammar
