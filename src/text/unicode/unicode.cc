#include "text/unicode/unicode.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/utf8.h"
#include "text/unicode/unicode_tables.h"

namespace celer::unicode {
namespace {

// Hangul syllables are composed by formula (Unicode standard, 3.12).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

// Nothing below has a decomposition partner or a combining class, and NFC leaves it alone.
constexpr char32_t kFirstNotNfcStable = 0x300;

uint8_t ClassOf(char32_t c) {
  if (c < 0x300) return 0;
  const CharRange* range = FindRange(BuiltInTables().combining_classes, c);
  return range == nullptr ? 0 : static_cast<uint8_t>(range->value);
}

char32_t Compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount)
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase &&
      b < kTBase + kTCount)
    return a + (b - kTBase);
  const Composition* at = BuiltInTables().compositions.FindFirst(
      a, [a, b](const Composition& entry) { return entry.a < a || (entry.a == a && entry.b < b); });
  return at != nullptr && at->a == a && at->b == b ? at->composed : 0;
}

struct Symbol {
  char32_t value;
  uint8_t combining_class;
};

void Decompose(char32_t c, bool compatible, std::vector<Symbol>& out) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const char32_t s = c - kSBase;
    out.push_back({kLBase + s / (kVCount * kTCount), 0});
    out.push_back({kVBase + s % (kVCount * kTCount) / kTCount, 0});
    if (s % kTCount) out.push_back({kTBase + s % kTCount, 0});
    return;
  }
  if (c >= 0xA0) {
    const Tables& tables = BuiltInTables();
    std::span<const char32_t> parts;
    if (compatible) parts = tables.Find(tables.compatible, c);
    if (parts.empty()) parts = tables.Find(tables.canonical, c);
    if (!parts.empty()) {
      for (const char32_t part : parts) out.push_back({part, ClassOf(part)});
      return;
    }
  }
  out.push_back({c, ClassOf(c)});
}

// Sorts each run of combining marks by class; stable, and n log n for a hostile run of a million marks.
void Reorder(std::vector<Symbol>& symbols) {
  for (size_t i = 0; i < symbols.size();) {
    if (symbols[i].combining_class == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < symbols.size() && symbols[end].combining_class != 0) ++end;
    std::stable_sort(symbols.begin() + i, symbols.begin() + end,
                     [](const Symbol& a, const Symbol& b) { return a.combining_class < b.combining_class; });
    i = end;
  }
}

void ComposeAll(std::vector<Symbol>& symbols) {
  size_t out = 0;
  size_t starter = SIZE_MAX;  // index of the last starter that was written
  int last_class = -1;        // of what was written after the starter; -1: nothing was
  for (const Symbol symbol : symbols) {
    if (starter != SIZE_MAX && last_class < symbol.combining_class) {
      if (const char32_t composed = Compose(symbols[starter].value, symbol.value)) {
        symbols[starter].value = composed;
        continue;
      }
    }
    if (symbol.combining_class == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = symbol.combining_class;
    }
    symbols[out++] = symbol;
  }
  symbols.resize(out);
}

}  // namespace

std::string Normalize(std::string_view text, Form form) {
  const bool compose = form == Form::kNfc || form == Form::kNfkc;
  const bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  const char32_t first_changed = form == Form::kNfc ? kFirstNotNfcStable : 0x80;
  std::vector<Symbol> symbols;
  bool changed = false;
  for (size_t i = 0; i < text.size();) {
    const utf8::CodePoint c = utf8::Decode(text.substr(i));
    if (c.value >= first_changed) {
      changed = true;
      break;
    }
    i += c.length;
  }
  if (!changed) return std::string(text);

  symbols.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const utf8::CodePoint c = utf8::Decode(text.substr(i));
    Decompose(c.value, compatible, symbols);
    i += c.length;
  }
  Reorder(symbols);
  if (compose) ComposeAll(symbols);
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const Symbol& symbol : symbols) utf8::Append(symbol.value, out);
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const utf8::CodePoint c = utf8::Decode(text.substr(i));
    i += c.length;
    if (c.value < 0x80) {
      out.push_back(static_cast<char>(c.value >= 'A' && c.value <= 'Z' ? c.value + 32 : c.value));
    } else if (c.value == 0x130) {  // capital I with a dot: the only one that becomes two
      out += "i\u0307";
    } else {
      utf8::Append(MapCase(BuiltInTables().lower, c.value), out);
    }
  }
  return out;
}

}  // namespace celer::unicode
