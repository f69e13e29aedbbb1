// JSON schemas as rules. docs/structured_output.md lists what is supported.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/grammar/expression.h"
#include "text/grammar/grammar.h"

namespace celer::grammar {

Result<RuleId> AddJsonSchema(std::string_view schema, const JsonOptions& options, RuleSet& rules,
                             Budget& budget);

}  // namespace celer::grammar
