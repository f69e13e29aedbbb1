#include "text/template/jinja/str_tools.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/utf8.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

constexpr size_t kShortNeedle = 16;

bool IsLineBreak(uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string::npos;
  if (needle.size() <= kShortNeedle) return text.find(needle, from);
  if (needle.size() > text.size() - from) return std::string::npos;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t RightFindText(std::string_view text, std::string_view needle) {
  if (needle.size() <= kShortNeedle) return text.rfind(needle);
  const std::string backwards(text.rbegin(), text.rend());
  const size_t at = FindText(backwards, std::string(needle.rbegin(), needle.rend()));
  return at == std::string::npos ? std::string::npos : text.size() - at - needle.size();
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator, int64_t limit,
                                    Budget& budget) {
  std::vector<std::string_view> pieces;
  while (limit-- != 0) {
    const size_t at = FindText(text, separator);
    if (at == std::string::npos) break;
    budget.Charge(1);
    pieces.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  budget.Charge(1);
  pieces.push_back(text);
  return pieces;
}

std::vector<std::string_view> RightSplit(std::string_view text, std::string_view separator, int64_t limit,
                                         Budget& budget) {
  // Backwards, so that a long separator is searched for only once over.
  const std::string backwards(text.rbegin(), text.rend());
  const std::string reversed(separator.rbegin(), separator.rend());
  std::vector<std::string_view> pieces;
  size_t end = text.size();
  for (std::string_view piece : Split(backwards, reversed, limit, budget)) {
    budget.Charge(1);
    pieces.push_back(text.substr(end - piece.size(), piece.size()));
    end -= std::min(end, piece.size() + separator.size());
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> SplitSpace(std::string_view text, int64_t limit, Budget& budget) {
  std::vector<std::string_view> pieces;
  size_t n = 0;
  while (true) {
    text = Strip(text, StripSide::kLeft);
    if (text.empty()) return pieces;
    if (limit-- == 0) break;
    size_t end = 0;
    while (end < text.size() && !IsSpace(DecodeAt(text, end, &n))) end += n;
    budget.Charge(1);
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  budget.Charge(1);
  pieces.push_back(text);
  return pieces;
}

std::vector<std::string_view> RightSplitSpace(std::string_view text, int64_t limit, Budget& budget) {
  std::vector<std::string_view> pieces;
  size_t n = 0;
  while (true) {
    text = Strip(text, StripSide::kRight);
    if (text.empty()) break;
    if (limit-- == 0) {
      budget.Charge(1);
      pieces.push_back(text);
      break;
    }
    size_t start = text.size();
    while (start > 0) {
      size_t at = start - 1;
      while (at > 0 && utf8::IsContinuation(text[at])) --at;
      if (IsSpace(DecodeAt(text, at, &n))) break;
      start = at;
    }
    budget.Charge(1);
    pieces.push_back(text.substr(start));
    text = text.substr(0, start);
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends, Budget& budget) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0, n; i < text.size();) {
    const uint32_t c = DecodeAt(text, i, &n);
    if (!IsLineBreak(c)) {
      i += n;
      continue;
    }
    const size_t end = i;
    i += n;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    budget.Charge(1);
    lines.push_back(text.substr(start, (keep_ends ? i : end) - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit,
                    Budget& budget) {
  std::string out;
  const auto append = [&](std::string_view piece) {
    budget.CheckString(static_cast<int64_t>(out.size() + piece.size()));
    out.append(piece);
  };
  budget.Charge(static_cast<int64_t>(text.size()) / 16);
  if (from.empty()) {  // between all characters, and at both ends
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
      if (limit != 0) append(to);
      if (limit > 0) --limit;
      DecodeAt(text, i, &n);
      append(text.substr(i, n));
    }
    if (limit != 0) append(to);
    return out;
  }
  while (limit-- != 0) {
    const size_t at = FindText(text, from);
    if (at == std::string::npos) break;
    append(text.substr(0, at));
    append(to);
    text.remove_prefix(at + from.size());
  }
  append(text);
  return out;
}

std::string JustifyText(const std::string& text, int64_t width, const std::string& fill, char align,
                        Budget& budget) {
  const int64_t missing = width - CountCodePoints(text);
  if (missing <= 0) return text;
  budget.CheckString(missing);
  // str.center() puts the odd space on the left only when both the gap and the width are odd.
  const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
  budget.CheckString(missing * static_cast<int64_t>(fill.size()));
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

bool HasCase(std::string_view text, bool upper, Budget& budget) {
  budget.Charge(static_cast<int64_t>(text.size()) / 4);
  bool any = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const uint32_t flags = CharClass(DecodeAt(text, i, &n));
    if ((flags & ((upper ? kCharLower : kCharUpper) | kCharTitle)) != 0) return false;
    any |= (flags & (upper ? kCharUpper : kCharLower)) != 0;
  }
  return any;
}

}  // namespace celer::jinja
