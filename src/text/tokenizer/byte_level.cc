#include "text/tokenizer/byte_level.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "base/utf8.h"
#include "text/unicode/hex_digit.h"

namespace celer {
namespace {

struct Tables {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, 0x144> to_byte{};  // by character
  std::array<std::string, 256> encoded;

  Tables() {
    to_byte.fill(-1);
    char32_t next = 0x100;  // bytes that do not print get the characters from U+0100 on
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t c = prints ? static_cast<char32_t>(byte) : next++;
      to_char[byte] = c;
      to_byte[c] = static_cast<int16_t>(byte);
      utf8::Append(c, encoded[byte]);
    }
  }
};

const Tables& Get() {
  static const Tables tables;
  return tables;
}

}  // namespace

const std::array<char32_t, 256>& ByteLevelAlphabet() {
  return Get().to_char;
}

std::string ByteLevelEncode(std::string_view bytes) {
  const Tables& tables = Get();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) out += tables.encoded[static_cast<uint8_t>(byte)];
  return out;
}

std::optional<std::string> ByteLevelDecode(std::string_view text) {
  const Tables& tables = Get();
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const utf8::CodePoint c = utf8::Decode(text.substr(i));
    if (!c.valid || c.value >= tables.to_byte.size() || tables.to_byte[c.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(tables.to_byte[c.value]));
    i += c.length;
  }
  return out;
}

std::optional<unsigned char> ParseByteToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = HexDigit(c);
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<unsigned char>(value);
}

std::string ByteTokenName(unsigned char byte) {
  char buffer[8];
  std::snprintf(buffer, sizeof buffer, "<0x%02X>", byte);
  return buffer;
}

}  // namespace celer
