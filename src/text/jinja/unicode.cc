#include "text/jinja/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/jinja/unicode_tables.h"

namespace celer::jinja {
namespace {

constexpr uint32_t kCodePointMask = (1u << 21) - 1;

enum class CaseKind { kUpper, kLower, kTitle };

template <size_t R, size_t S>
void AppendMapped(std::string& out, uint32_t c, const CaseRun (&runs)[R], const CaseSpecial (&specials)[S]) {
  auto special = std::lower_bound(std::begin(specials), std::end(specials), c,
                                  [](const CaseSpecial& s, uint32_t v) { return s.from < v; });
  if (special != std::end(specials) && special->from == c) {
    out += special->to;
    return;
  }
  auto run = std::lower_bound(std::begin(runs), std::end(runs), c,
                              [](const CaseRun& r, uint32_t v) { return r.last < v; });
  if (run != std::end(runs) && run->first <= c && (c - run->first) % run->step == 0)
    c = static_cast<uint32_t>(static_cast<int32_t>(c) + run->delta);
  AppendUtf8(out, c);
}

void AppendCase(std::string& out, uint32_t c, CaseKind kind) {
  if (c < 0x80) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool upper = c >= 'A' && c <= 'Z';
    if (kind == CaseKind::kLower ? upper : lower) c ^= 0x20;
    out.push_back(static_cast<char>(c));
    return;
  }
  switch (kind) {
    case CaseKind::kUpper:
      AppendMapped(out, c, kUpperRuns, kUpperSpecials);
      break;
    case CaseKind::kLower:
      AppendMapped(out, c, kLowerRuns, kLowerSpecials);
      break;
    case CaseKind::kTitle:
      AppendMapped(out, c, kTitleRuns, kTitleSpecials);
      break;
  }
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
  auto after = std::upper_bound(std::begin(kCharClasses), std::end(kCharClasses), code_point,
                                [](uint32_t v, uint32_t entry) { return v < (entry & kCodePointMask); });
  return *std::prev(after) >> 21;
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t n = lead >= 0xf0 && lead <= 0xf4  ? 4
                     : lead >= 0xe0 && lead < 0xf0 ? 3
                     : lead >= 0xc2 && lead < 0xe0 ? 2
                                                   : 0;
    if (n == 0 || i + n > text.size()) return i;
    uint32_t c = lead & (0xff >> (n + 1));
    for (size_t k = 1; k < n; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return i;
      c = c << 6 | (byte & 0x3f);
    }
    if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10ffff)) || (c >= 0xd800 && c < 0xe000))
      return i;
    i += n;
  }
  return std::string_view::npos;
}

uint32_t DecodeAt(std::string_view text, size_t offset, size_t* length) {
  const auto lead = static_cast<unsigned char>(text[offset]);
  const size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t c = n == 1 ? lead : lead & (0xff >> (n + 1));
  *length = std::min(n, text.size() - offset);
  for (size_t k = 1; k < *length; ++k) c = c << 6 | (static_cast<unsigned char>(text[offset + k]) & 0x3f);
  return c;
}

void AppendUtf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

int64_t CountCodePoints(std::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

size_t ByteOffset(std::string_view text, int64_t index) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
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
      while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
      const uint32_t c = DecodeAt(text, at, &n);
      if (!drop(at, n, c)) break;
      text.remove_suffix(text.size() - at);
    }
  }
  return text;
}

}  // namespace celer::jinja
