// Words between spaces: short lists in tables.
#pragma once

#include <algorithm>
#include <string_view>

namespace celer {

using Words = std::string_view;

inline bool Holds(Words words, std::string_view word) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

}  // namespace celer
