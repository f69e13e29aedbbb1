#include "io/printable.h"

#include <cstdint>
#include <cstdio>

namespace celer {
namespace {

// Bytes of the well-formed code point at the start of `text`, or 0.
size_t CodePointBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;   // overlong
  if (lead == 0xed && byte(1) >= 0xa0) return 0;  // surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
  return length;
}

}  // namespace

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_bytes) return out + "...";
    const auto byte = static_cast<uint8_t>(text[0]);
    const size_t length = CodePointBytes(text);
    const bool c1 = length == 2 && byte == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0;  // U+0080..U+009F
    if (byte == '\n' || byte == '\t' || byte == '\r') {
      out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
      text.remove_prefix(1);
    } else if (length == 0 || byte < 0x20 || byte == 0x7f || c1) {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace celer
