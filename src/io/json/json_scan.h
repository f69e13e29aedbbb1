// A look at JSON text without parsing it, to bound the work of a parser or to find where a text is cut.
#pragma once

#include <cstddef>
#include <string_view>

namespace celer {

// Calls each(index, character) for what stands outside strings, until it returns false. The text need not be
// valid.
template <class Each>
void ForEachOutsideStrings(std::string_view text, Each each) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (!each(i, c)) {
      return;
    }
  }
}

}  // namespace celer
