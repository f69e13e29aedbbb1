// The formats of JSON Schema that strings can be held to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace celer::grammar {

// A regular expression for the whole string; nullopt if the format is not known.
std::optional<std::string> FormatPattern(std::string_view format);
// For error sentences.
std::string FormatNames();

}  // namespace celer::grammar
