// Masks over the vocabulary that are no grammar.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "celer/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::server {

// Sets the bits of the first so many tokens.
void AllowFirst(int64_t tokens, std::span<uint32_t> bits);

// No answer contains one of the words: its last token cannot follow its others. Each word is meant both at
// the beginning of a text and after a space, which are different tokens.
std::shared_ptr<const TokenMask> MakeBadWordsMask(const Tokenizer& tokenizer,
                                                  std::span<const std::string> words, int64_t vocab);

}  // namespace celer::server
