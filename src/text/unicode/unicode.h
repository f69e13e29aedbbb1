// Normalization forms and lower case, with the data of unicode_tables.h.
#pragma once

#include <string>
#include <string_view>

namespace celer::unicode {

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

// `text` is valid UTF-8.
std::string Normalize(std::string_view text, Form form);

// Each code point by itself: no rule for the final sigma.
std::string ToLower(std::string_view text);

}  // namespace celer::unicode
