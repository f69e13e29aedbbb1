// What the fuzz targets of grammars do with one that compiled: random tokens, whose masks must be exact and
// made within a bound that counts steps, not time.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>

#include "text/grammar/grammar_test_tokens.h"

namespace celer {

inline GrammarLimits FuzzLimits() {
  return {.max_source_bytes = 4096,
          .max_states = 4000,
          .max_steps = 200'000,
          .max_depth = 32,
          .max_mask_steps = 20'000,
          .max_token_steps = 200'000};
}

inline void WalkGrammar(const Grammar::Pointer& grammar) {
  std::mt19937 random(1);
  GrammarState state(grammar);
  const uint64_t limit = grammar->limits().max_token_steps;
  std::vector<uint32_t> bits(grammar->table().mask_words());
  for (int i = 0; i < 12; ++i) {
    grammar::Effort effort{limit};
    const bool made = state.Mask(bits, effort);
    if (effort.spent > 2 * limit) std::abort();
    if (!made) {
      if (effort.spent <= limit || state.TooMuchWork().message().empty()) std::abort();
      return;
    }
    const std::vector<int32_t> allowed = Allowed(state);
    if (allowed.empty()) std::abort();  // the vocabulary has every byte, so there is always a way on
    for (int probe = 0; probe < 10; ++probe) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(grammar->table().vocab_size()));
      GrammarState copy = state;
      const bool in_mask = std::find(allowed.begin(), allowed.end(), id) != allowed.end();
      if (copy.Accept(id) != in_mask) std::abort();
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (!state.Accept(token)) std::abort();
    if (token == TestTokens::kEnd) return;
  }
  if (!state.AcceptBytes(state.ShortestEnd()) || !state.may_end()) std::abort();
}

}  // namespace celer
