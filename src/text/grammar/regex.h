// Regular expressions as automata: no backtracking, so matching is linear in the text. What is not regular
// (lookahead, look-behind, backreferences) is refused by name.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/grammar/dfa.h"
#include "text/grammar/expression.h"

namespace celer::grammar {

struct RegexOptions {
  bool search = false;     // a match anywhere in the text is enough, as JSON Schema has it
  bool json_text = false;  // the text is inside a JSON string, in its plain spelling
};

Result<Dfa> RegexDfa(std::string_view pattern, const RegexOptions& options, Budget& budget);

}  // namespace celer::grammar
