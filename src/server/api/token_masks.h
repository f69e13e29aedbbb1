// Token masks other than grammars.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "celer/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::server {

// bad_words: the last token of a word cannot follow its other tokens. Each word is tokenized both at the
// beginning of a text and after a space.
std::shared_ptr<const TokenMask> MakeBadWordsMask(const Tokenizer& tokenizer,
                                                  std::span<const std::string> words, int64_t vocab);

}  // namespace celer::server
