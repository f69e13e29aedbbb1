#include "text/template/jinja/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/utf8.h"
#include "text/unicode/unicode_tables.h"

namespace celer::jinja {
namespace {

enum class CaseKind { kUpper, kLower, kTitle, kFold };

void AppendCase(std::string& out, uint32_t c, CaseKind kind) {
  if (c < 0x80) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool upper = c >= 'A' && c <= 'Z';
    if (kind == CaseKind::kLower || kind == CaseKind::kFold ? upper : lower) c ^= 0x20;
    out.push_back(static_cast<char>(c));
    return;
  }
  const unicode::Tables& tables = unicode::BuiltInTables();
  const unicode::CaseTable& table = kind == CaseKind::kUpper   ? tables.upper_case
                                    : kind == CaseKind::kLower ? tables.lower_case
                                    : kind == CaseKind::kTitle ? tables.title_case
                                                               : tables.fold_case;
  const auto special = tables.Find(table.specials, c);
  for (const char32_t part : special) utf8::Append(part, out);
  if (special.empty()) utf8::Append(unicode::MapCase(table.runs, c), out);
}

template <class Chooser>  // (code point) -> CaseKind
std::string MapCase(std::string_view text, Chooser choose) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0, n; i < text.size(); i += n) {
    const uint32_t c = DecodeAt(text, i, &n);
    AppendCase(out, c, choose(c));
  }
  return out;
}

}  // namespace

uint32_t CharClass(uint32_t code_point) {
  const unicode::CharClass* found = unicode::BuiltInTables().char_classes.FindFirst(
      code_point, [code_point](const unicode::CharClass& entry) { return entry.last() < code_point; });
  return found == nullptr ? 0 : found->flags();
}

uint32_t DecodeAt(std::string_view text, size_t offset, size_t* length) {
  const utf8::CodePoint c = utf8::Decode(text.substr(offset));
  *length = c.length;
  return c.value;
}

int64_t CountCodePoints(std::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += !utf8::IsContinuation(c);
  return n;
}

size_t ByteOffset(std::string_view text, int64_t index) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if (utf8::IsContinuation(text[i])) continue;
    if (index-- <= 0) break;
  }
  return i;
}

std::string ToUpper(std::string_view text) {
  return MapCase(text, [](uint32_t) { return CaseKind::kUpper; });
}

std::string ToLower(std::string_view text) {
  return MapCase(text, [](uint32_t) { return CaseKind::kLower; });
}

std::string CaseFold(std::string_view text) {
  return MapCase(text, [](uint32_t) { return CaseKind::kFold; });
}

std::string SwapCase(std::string_view text) {
  return MapCase(text, [](uint32_t c) {
    return (CharClass(c) & kCharUpper) != 0 ? CaseKind::kLower : CaseKind::kUpper;
  });
}

std::string Capitalize(std::string_view text) {
  bool first = true;
  return MapCase(
      text, [&first](uint32_t) { return std::exchange(first, false) ? CaseKind::kTitle : CaseKind::kLower; });
}

std::string TitleCase(std::string_view text) {
  bool in_word = false;
  return MapCase(text, [&in_word](uint32_t c) {
    const bool cased = (CharClass(c) & (kCharUpper | kCharLower | kCharTitle)) != 0;
    return std::exchange(in_word, cased) ? CaseKind::kLower : CaseKind::kTitle;
  });
}

std::string_view Strip(std::string_view text, StripSide side, bool use_chars, std::string_view chars) {
  const auto drop = [&](size_t at, size_t n, uint32_t c) {
    return use_chars ? chars.find(text.substr(at, n)) != std::string_view::npos : IsSpace(c);
  };
  size_t n = 0;
  if (side != StripSide::kRight) {
    while (!text.empty()) {
      const uint32_t c = DecodeAt(text, 0, &n);
      if (!drop(0, n, c)) break;
      text.remove_prefix(n);
    }
  }
  if (side != StripSide::kLeft) {
    while (!text.empty()) {
      size_t at = text.size() - 1;
      while (at > 0 && utf8::IsContinuation(text[at])) --at;
      const uint32_t c = DecodeAt(text, at, &n);
      if (!drop(at, n, c)) break;
      text.remove_suffix(text.size() - at);
    }
  }
  return text;
}

}  // namespace celer::jinja
