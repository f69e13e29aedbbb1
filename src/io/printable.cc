#include "io/printable.h"

#include <cstdint>
#include <cstdio>

#include "core/utf8.h"

namespace celer {
std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_bytes) return out + "...";
    const auto byte = static_cast<uint8_t>(text[0]);
    const utf8::CodePoint c = utf8::Decode(text);
    const bool control = c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0);
    if (byte == '\n' || byte == '\t' || byte == '\r') {
      out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
      text.remove_prefix(1);
    } else if (!c.valid || control) {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
      text.remove_prefix(1);
    } else {
      out += text.substr(0, c.length);
      text.remove_prefix(c.length);
    }
  }
  return out;
}

}  // namespace celer
