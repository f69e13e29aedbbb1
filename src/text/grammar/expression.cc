#include "text/grammar/expression.h"

#include <algorithm>

#include "base/check.h"
#include "text/grammar/dfa.h"

namespace celer::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;

// Splits [low, high] into ranges whose UTF-8 forms have the same length and differ in one run of bytes, and
// hands each out as (low byte, high byte) pairs.
struct Utf8Range {
  size_t length;
  std::array<uint8_t, 4> low, high;
};

size_t EncodeUtf8(char32_t c, std::array<uint8_t, 4>& out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>((0xF00 >> length & 0xF0) | c);
  return length;
}

void SplitUtf8(char32_t low, char32_t high, std::vector<Utf8Range>& out) {
  if (low > high) return;
  for (const char32_t edge : {0x7F, 0x7FF, 0xFFFF})
    if (low <= edge && high > edge) {
      SplitUtf8(low, edge, out);
      SplitUtf8(edge + 1, high, out);
      return;
    }
  if (high >= 0x80)
    for (int i = 1; i < 4; ++i) {
      const char32_t mask = (char32_t{1} << 6 * i) - 1;
      if ((low & ~mask) == (high & ~mask)) continue;
      if ((low & mask) != 0) {
        SplitUtf8(low, low | mask, out);
        SplitUtf8((low | mask) + 1, high, out);
        return;
      }
      if ((high & mask) != mask) {
        SplitUtf8(low, (high & ~mask) - 1, out);
        SplitUtf8(high & ~mask, high, out);
        return;
      }
    }
  Utf8Range range;
  range.length = EncodeUtf8(low, range.low);
  EncodeUtf8(high, range.high);
  out.push_back(range);
}

}  // namespace

void CodePointSet::Add(char32_t low, char32_t high) {
  if (low > high) return;
  const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), low,
                                      [](const auto& range, char32_t c) { return range.second + 1 < c; });
  auto last = first;
  for (; last != ranges_.end() && last->first <= high + 1; ++last) {
    low = std::min(low, last->first);
    high = std::max(high, last->second);
  }
  ranges_.insert(ranges_.erase(first, last), {low, high});
}

void CodePointSet::Add(const CodePointSet& other) {
  for (const auto& [low, high] : other.ranges_) Add(low, high);
}

CodePointSet CodePointSet::All() {
  return Of({{0, 0xD7FF}, {0xE000, kLast}});
}

CodePointSet CodePointSet::Of(std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
  CodePointSet set;
  for (const auto& [low, high] : ranges) set.Add(low, high);
  return set;
}

CodePointSet CodePointSet::Complement() const {
  return All().Minus(*this);
}

CodePointSet CodePointSet::Minus(const CodePointSet& other) const {
  CodePointSet out;
  for (auto [low, high] : ranges_) {
    for (const auto& [from, to] : other.ranges_) {
      if (to < low) continue;
      if (from > high) break;
      if (from > low) out.ranges_.emplace_back(low, from - 1);
      low = to + 1;
      if (low > high) break;
    }
    if (low <= high) out.ranges_.emplace_back(low, high);
  }
  return out;
}

bool CodePointSet::Contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const auto& range) { return range.first <= c && c <= range.second; });
}

RuleSet::RuleSet() {
  Add({});
  Add({.kind = Expr::Kind::kNever});
}

ExprId RuleSet::Add(Expr expr) {
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId RuleSet::Literal(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  return Add({.kind = Expr::Kind::kLiteral, .bytes = std::string(bytes)});
}

ExprId RuleSet::Byte(uint8_t low, uint8_t high) {
  return Add({.kind = Expr::Kind::kByte, .low = low, .high = high});
}

ExprId RuleSet::Bytes(std::string_view set) {
  std::vector<ExprId> parts;
  for (const char c : set) parts.push_back(Byte(c));
  return Choice(std::move(parts));
}

ExprId RuleSet::CodePoints(const CodePointSet& set) {
  std::vector<Utf8Range> split;
  const CodePointSet scalars = set.Minus(CodePointSet::Of({{0xD800, 0xDFFF}}));
  for (const auto& [low, high] : scalars.ranges()) SplitUtf8(low, std::min(high, kLast), split);
  std::vector<ExprId> parts;
  for (const Utf8Range& range : split) {
    std::vector<ExprId> bytes;
    for (size_t i = 0; i < range.length; ++i) bytes.push_back(Byte(range.low[i], range.high[i]));
    parts.push_back(Sequence(std::move(bytes)));
  }
  return Choice(std::move(parts));
}

ExprId RuleSet::Sequence(std::vector<ExprId> parts) {
  std::erase(parts, Empty());
  if (std::find(parts.begin(), parts.end(), Never()) != parts.end()) return Never();
  if (parts.empty()) return Empty();
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Expr::Kind::kSequence, .parts = std::move(parts)});
}

ExprId RuleSet::Choice(std::vector<ExprId> parts) {
  std::erase(parts, Never());
  if (parts.empty()) return Never();
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Expr::Kind::kChoice, .parts = std::move(parts)});
}

ExprId RuleSet::Repeat(ExprId part, uint32_t min, uint32_t max) {
  CELER_CHECK(min <= max);
  if (max == 0 || part == Empty()) return Empty();
  if (part == Never()) return min == 0 ? Empty() : Never();
  if (min == 1 && max == 1) return part;
  return Add({.kind = Expr::Kind::kRepeat, .min = min, .max = max, .parts = {part}});
}

ExprId RuleSet::Call(RuleId rule) {
  return Add({.kind = Expr::Kind::kCall, .rule = rule});
}

ExprId RuleSet::Graph(uint32_t nodes, std::vector<GraphEdge> edges) {
  CELER_CHECK(nodes > 0);
  return Add({.kind = Expr::Kind::kGraph, .max = nodes - 1, .edges = std::move(edges)});
}

ExprId RuleSet::Automaton(Dfa dfa) {
  if (dfa.states.empty()) return Never();
  return Add({.kind = Expr::Kind::kDfa, .dfa = std::make_shared<const Dfa>(std::move(dfa))});
}

ExprId RuleSet::AtBegin() {
  return Add({.kind = Expr::Kind::kAtBegin});
}

ExprId RuleSet::AtEnd() {
  return Add({.kind = Expr::Kind::kAtEnd});
}

RuleId RuleSet::AddRule(std::string name) {
  bodies_.push_back(Never());
  names_.push_back(std::move(name));
  return static_cast<RuleId>(bodies_.size() - 1);
}

}  // namespace celer::grammar
