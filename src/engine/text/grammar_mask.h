// A compiled grammar as the token mask of a request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "celer/engine.h"
#include "text/grammar/grammar.h"

namespace celer {

// Sets the bits of the first so many tokens.
void AllowFirst(int64_t tokens, std::span<uint32_t> bits);

// `thought_end`: the tag behind which the grammar begins; "": at once.
std::shared_ptr<const TokenMask> MakeGrammarMask(Grammar::Pointer grammar, std::string thought_end);

}  // namespace celer
