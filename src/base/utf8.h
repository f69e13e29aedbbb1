// UTF-8, one code point at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace celer::utf8 {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0xFFFD;
  size_t length = 1;  // bytes read; for what is not valid: the longest prefix of a valid sequence, at least 1
  bool valid = false;
  bool cut = false;  // not valid only because the text ends here
};

// The first code point of a text that is not empty. Surrogates, overlong forms and values above U+10FFFF are
// not valid.
CodePoint Decode(std::string_view text);

void Append(char32_t value, std::string& out);

// Offset of the first byte that is not part of a valid code point, or npos.
size_t FindInvalid(std::string_view text);
inline bool IsValid(std::string_view text) {
  return FindInvalid(text) == std::string_view::npos;
}

// Whether a byte is inside a code point of a valid text, and not the first of one.
inline bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Every maximal invalid part becomes one U+FFFD (Unicode's recommended practice; what Rust and Python do).
std::string ToValid(std::string_view text);

// Unicode's White_Space property.
bool IsSpace(char32_t c);

// Lengths of the run of white space at the start and at the end of a valid text.
size_t LeadingSpace(std::string_view text);
size_t TrailingSpace(std::string_view text);

// Turns a stream of bytes into a stream of valid UTF-8: holds back an unfinished code point until its rest
// comes. Invalid parts become U+FFFD: one for each maximal part, or one for each byte as SentencePiece does.
class Joiner {
 public:
  explicit Joiner(bool per_byte = false) : per_byte_(per_byte) {}
  void Push(std::string_view bytes, std::string& out);
  void Finish(std::string& out);

 private:
  void Drain(bool finish, std::string& out);

  bool per_byte_;
  std::string held_;
};

}  // namespace celer::utf8
