#include "io/file/printable.h"

#include "base/escape.h"

namespace celer {

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_bytes) return out + "...";
    text.remove_prefix(AppendEscaped(text, out));
  }
  return out;
}

}  // namespace celer
