// The character that SentencePiece writes for a space.
#pragma once

#include <string_view>

namespace celer {

inline constexpr std::string_view kMetaspace = "\u2581";

}  // namespace celer
