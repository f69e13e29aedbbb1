// Text from files, made safe for a terminal: escape sequences, control characters and bidirectional controls
// are escaped, and so are bytes that are not UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace celer {

// The escaped form of the first character of a text that is not empty, and its length in the text.
size_t AppendEscaped(std::string_view text, std::string& out);

std::string Escaped(std::string_view text);

// JSON whose strings have DEL, C1 and such marks as \u escapes, which JSON's own rules do not ask for.
std::string EscapedJson(std::string_view json);

}  // namespace celer
