#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace celer::utf8 {

CodePoint Decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};

  // The bounds of the second byte exclude overlong forms, surrogates and what lies above U+10FFFF.
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.length = i, .cut = true};
    if (byte(i) < low || byte(i) > high) return {.length = i};
    value = value << 6 | (byte(i) & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {value, length, true};
}

void Append(char32_t value, std::string& out) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    push(value);
  } else if (value < 0x800) {
    push(0xC0 | value >> 6);
    push(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    push(0xE0 | value >> 12);
    push(0x80 | (value >> 6 & 0x3F));
    push(0x80 | (value & 0x3F));
  } else {
    push(0xF0 | value >> 18);
    push(0x80 | (value >> 12 & 0x3F));
    push(0x80 | (value >> 6 & 0x3F));
    push(0x80 | (value & 0x3F));
  }
}

size_t FindInvalid(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {  // eight ASCII bytes at a time
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if (!(word & 0x8080808080808080u)) {
        i += 8;
        continue;
      }
    }
    const CodePoint c = Decode(text.substr(i));
    if (!c.valid) return i;
    i += c.length;
  }
  return std::string_view::npos;
}

std::string ToValid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = Decode(text.substr(i));
    out += c.valid ? text.substr(i, c.length) : kReplacement;
    i += c.length;
  }
  return out;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t LeadingSpace(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const CodePoint c = Decode(text.substr(i));
    if (!c.valid || !IsSpace(c.value)) break;
    i += c.length;
  }
  return i;
}

size_t TrailingSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && IsContinuation(text[start])) --start;
    const CodePoint c = Decode(text.substr(start, end - start));
    if (!c.valid || c.length != end - start || !IsSpace(c.value)) break;
    end = start;
  }
  return text.size() - end;
}

void Joiner::Push(std::string_view bytes, std::string& out) {
  held_ += bytes;
  Drain(false, out);
}

void Joiner::Finish(std::string& out) {
  Drain(true, out);
}

void Joiner::Drain(bool finish, std::string& out) {
  const std::string_view text = held_;
  size_t i = 0;
  while (i < text.size()) {
    const CodePoint c = Decode(text.substr(i));
    if (c.cut && !finish) break;
    if (c.valid) {
      out += text.substr(i, c.length);
      i += c.length;
    } else {
      out += kReplacement;
      i += per_byte_ ? 1 : c.length;
    }
  }
  held_.erase(0, i);
}

}  // namespace celer::utf8
