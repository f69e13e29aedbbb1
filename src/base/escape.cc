#include "base/escape.h"

#include <fmt/format.h>

#include <cstdint>

#include "base/utf8.h"

namespace celer {
namespace {

// Line and paragraph separators, and bidirectional controls: they can make a name look like another one.
bool Misleads(char32_t c) {
  return c == 0x061C || c == 0x200B || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

}  // namespace

size_t AppendEscaped(std::string_view text, std::string& out) {
  const auto byte = static_cast<uint8_t>(text[0]);
  const utf8::CodePoint c = utf8::Decode(text);
  const bool control = c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0);
  if (byte == '\n' || byte == '\t' || byte == '\r') {
    out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
    return 1;
  }
  if (!c.valid || control) {
    out += fmt::format("\\x{:02x}", byte);
    return 1;
  }
  if (Misleads(c.value))
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
  else
    out += text.substr(0, c.length);
  return c.length;
}

std::string EscapedJson(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const utf8::CodePoint c = utf8::Decode(json);
    if (c.valid && ((c.value >= 0x7f && c.value < 0xa0) || Misleads(c.value)))
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    else
      out += json.substr(0, c.length);
    json.remove_prefix(c.length);
  }
  return out;
}

std::string Escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) text.remove_prefix(AppendEscaped(text, out));
  return out;
}

}  // namespace celer
