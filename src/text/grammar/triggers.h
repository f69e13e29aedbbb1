// Free text in which some words begin a syntax: tool calls.
#pragma once

#include <span>

#include "base/result.h"
#include "text/grammar/expression.h"
#include "text/grammar/grammar.h"

namespace celer::grammar {

Result<RuleId> AddTriggers(std::span<const TriggeredPart> parts, const TriggerOptions& options,
                           RuleSet& rules, Budget& budget);

}  // namespace celer::grammar
