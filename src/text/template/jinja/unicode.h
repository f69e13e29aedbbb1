// UTF-8 as Python sees it: text is a row of code points, and every index, length and case rule is in those
// terms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace celer::jinja {

enum CharFlag : uint32_t {  // the order is fixed by tools/make_unicode_tables.py
  kCharSpace = 1,
  kCharPrintable = 2,
  kCharAlpha = 4,
  kCharDecimal = 8,
  kCharDigit = 16,
  kCharNumeric = 32,
  kCharUpper = 64,
  kCharLower = 128,
  kCharTitle = 256,
};

uint32_t CharClass(uint32_t code_point);
inline bool IsSpace(uint32_t c) {
  return (CharClass(c) & kCharSpace) != 0;
}
inline bool IsWord(uint32_t c) {  // \w of a regular expression
  return c == '_' || (CharClass(c) & (kCharAlpha | kCharNumeric)) != 0;
}

// The functions below expect valid UTF-8; base/utf8.h finds what is not.
uint32_t DecodeAt(std::string_view text, size_t offset, size_t* length);
int64_t CountCodePoints(std::string_view text);
// Byte offset of the code point with this index; text.size() when the index is at or past the end.
size_t ByteOffset(std::string_view text, int64_t index);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string CaseFold(std::string_view text);
std::string SwapCase(std::string_view text);
std::string Capitalize(std::string_view text);  // first character title case, the rest lower
std::string TitleCase(std::string_view text);   // str.title(): every run of cased characters

// Whitespace when `chars` is empty and `use_chars` is false, else any code point of `chars`.
enum class StripSide { kLeft, kRight, kBoth };
std::string_view Strip(std::string_view text, StripSide side, bool use_chars = false,
                       std::string_view chars = {});

}  // namespace celer::jinja
