// Grammars as text: llama.cpp's GBNF, which xgrammar and vLLM call EBNF.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/grammar/expression.h"

namespace celer::grammar {

// Returns the rule `root`.
Result<RuleId> AddGbnf(std::string_view text, RuleSet& rules, Budget& budget);

}  // namespace celer::grammar
