#include "text/grammar/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/grammar/dfa.h"

namespace celer::grammar {
namespace {

// Digits that every reader of JSON keeps: a double holds 15, an int64 holds 18.
constexpr uint32_t kIntegerDigits = 18, kWholeDigits = 15, kFractionDigits = 15, kExponentDigits = 2;
constexpr uint32_t kIndent = 20;

struct Escape {
  char c;
  char name;
};
constexpr Escape kEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                               {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

std::string ControlEscape(char32_t c) {
  constexpr char kHex[] = "0123456789abcdef";
  return std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
}

bool NeedsEscape(char32_t c) {
  return c < 0x20 || c == '"' || c == '\\';
}

std::string EscapeOf(char32_t c) {
  for (const Escape& escape : kEscapes)
    if (static_cast<char32_t>(escape.c) == c) return {'\\', escape.name};
  return ControlEscape(c);
}

ExprId Digit(RuleSet& rules, char low = '0', char high = '9') {
  return rules.Byte(static_cast<uint8_t>(low), static_cast<uint8_t>(high));
}

// 0, or digits that do not begin with 0.
ExprId Whole(RuleSet& rules, uint32_t max_digits) {
  return rules.Choice(
      {rules.Byte('0'), rules.Sequence({Digit(rules, '1'), rules.Repeat(Digit(rules), 0, max_digits - 1)})});
}

// Numbers from `low` to `high`, both of the same number of digits.
ExprId SameLength(RuleSet& rules, const std::string& low, const std::string& high) {
  // Node 4 * i + 2 * above + below: i digits are written; they are more than those of `low`, less than those
  // of `high`.
  const auto length = static_cast<uint32_t>(low.size());
  std::vector<GraphEdge> edges;
  const auto node = [](uint32_t i, bool above, bool below) { return 4 * i + 2u * above + below; };
  for (uint32_t i = 0; i < length; ++i)
    for (const bool above : {false, true})
      for (const bool below : {false, true})
        for (char c = above ? '0' : low[i]; c <= (below ? '9' : high[i]); ++c)
          edges.push_back(
              {node(i, above, below), node(i + 1, above || c > low[i], below || c < high[i]), rules.Byte(c)});
  const uint32_t end = 4 * (length + 1);
  for (uint32_t i = 0; i < 4; ++i) edges.push_back({4 * length + i, end, rules.Empty()});
  return rules.Graph(end + 1, std::move(edges));
}

// Integers without sign, from `low` on, to `high` where there is one.
ExprId Magnitudes(RuleSet& rules, const std::string& low, const std::optional<std::string>& high) {
  std::vector<ExprId> parts;
  const size_t longest = high ? high->size() : std::max<size_t>(kIntegerDigits, low.size());
  for (size_t length = low.size(); length <= longest; ++length) {
    const std::string from = length == low.size() ? low : "1" + std::string(length - 1, '0');
    const std::string to = high && length == high->size() ? *high : std::string(length, '9');
    if (from <= to) parts.push_back(SameLength(rules, from, to));
  }
  return rules.Choice(std::move(parts));
}

// Digits, of which at least one is not 0 if `some`.
ExprId AnyDigits(RuleSet& rules, bool some) {
  const ExprId any = rules.Repeat(Digit(rules), 0, kUnbounded);
  if (!some) return any;
  return rules.Sequence({rules.Repeat(rules.Byte('0'), 0, kUnbounded), Digit(rules, '1'), any});
}

ExprId AnyFraction(RuleSet& rules) {
  return rules.Optional(rules.Sequence({rules.Byte('.'), AnyDigits(rules, false)}));
}

// Numbers without sign that are at least (or, if open, more than) `low`; the number of digits is bounded
// elsewhere.
ExprId AtLeast(RuleSet& rules, const Decimal& low, bool open) {
  const ExprId digits = AnyDigits(rules, false);
  std::vector<ExprId> parts;
  const auto length = static_cast<uint32_t>(low.whole.size());
  parts.push_back(rules.Sequence(
      {Digit(rules, '1'), rules.Repeat(Digit(rules), length, length), digits, AnyFraction(rules)}));
  for (size_t i = 0; i < length; ++i)
    if (low.whole[i] < '9')
      parts.push_back(rules.Sequence(
          {rules.Literal(low.whole.substr(0, i)), Digit(rules, static_cast<char>(low.whole[i] + 1)),
           rules.Repeat(Digit(rules), length - i - 1, length - i - 1), AnyFraction(rules)}));
  std::vector<ExprId> rest;
  if (low.fraction.empty()) {
    if (!open) rest.push_back(rules.Empty());
    rest.push_back(rules.Sequence({rules.Byte('.'), AnyDigits(rules, open)}));
  } else {
    for (size_t i = 0; i < low.fraction.size(); ++i)
      if (low.fraction[i] < '9')
        rest.push_back(rules.Sequence({rules.Literal("." + low.fraction.substr(0, i)),
                                       Digit(rules, static_cast<char>(low.fraction[i] + 1)), digits}));
    rest.push_back(rules.Sequence({rules.Literal("." + low.fraction), AnyDigits(rules, open)}));
  }
  parts.push_back(rules.Sequence({rules.Literal(low.whole), rules.Choice(std::move(rest))}));
  return rules.Choice(std::move(parts));
}

ExprId AtMost(RuleSet& rules, const Decimal& high, bool open) {
  const ExprId digits = AnyDigits(rules, false);
  std::vector<ExprId> parts;
  const auto length = static_cast<uint32_t>(high.whole.size());
  if (length > 1) parts.push_back(rules.Sequence({Whole(rules, length - 1), AnyFraction(rules)}));
  for (size_t i = 0; i < length; ++i)
    if (high.whole[i] > '0')
      parts.push_back(rules.Sequence(
          {rules.Literal(high.whole.substr(0, i)), Digit(rules, '0', static_cast<char>(high.whole[i] - 1)),
           rules.Repeat(Digit(rules), length - i - 1, length - i - 1), AnyFraction(rules)}));
  std::vector<ExprId> rest;
  if (!open || !high.fraction.empty()) rest.push_back(rules.Empty());
  for (size_t i = 0; i < high.fraction.size(); ++i) {
    if (i > 0) rest.push_back(rules.Literal("." + high.fraction.substr(0, i)));
    if (high.fraction[i] > '0')
      rest.push_back(rules.Sequence({rules.Literal("." + high.fraction.substr(0, i)),
                                     Digit(rules, '0', static_cast<char>(high.fraction[i] - 1)), digits}));
  }
  if (!open)
    rest.push_back(
        rules.Sequence({rules.Literal("." + high.fraction), rules.Repeat(rules.Byte('0'), 0, kUnbounded)}));
  parts.push_back(rules.Sequence({rules.Literal(high.whole), rules.Choice(std::move(rest))}));
  return rules.Choice(std::move(parts));
}

// The next integer up (or down, for the magnitude of a negative bound).
std::string PlusOne(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  return "1" + digits;
}

// `digits` is not "0".
std::string MinusOne(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  const size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}

// Numbers without sign in [low, high]; `low` is not negative, nor is `high`.
Result<Dfa> UnsignedDfa(const Decimal& low, bool low_open, const std::optional<Decimal>& high, bool high_open,
                        bool integer, Budget& budget) {
  RuleSet rules;
  if (integer) {
    const std::string from = low_open || !low.fraction.empty() ? PlusOne(low.whole) : low.whole;
    std::optional<std::string> to;
    if (high) {
      const bool less = high_open && high->fraction.empty();
      if (less && high->whole == "0") return Dfa{};
      to = less ? MinusOne(high->whole) : high->whole;
    }
    return MakeDfa(rules, Magnitudes(rules, from, to), budget);
  }
  // So many digits that a double tells two numbers near the bounds apart.
  size_t whole = kWholeDigits, fraction = kFractionDigits;
  for (const Decimal* bound : {&low, high ? &*high : nullptr}) {
    if (!bound) continue;
    fraction = std::min<size_t>(fraction,
                                kFractionDigits - std::min<size_t>(bound->whole.size(), kFractionDigits - 1));
    whole = std::max(whole, bound->whole.size() + 1);
  }
  for (const Decimal* bound : {&low, high ? &*high : nullptr})
    if (bound) fraction = std::max(fraction, bound->fraction.size());
  const ExprId base = rules.Sequence(
      {Whole(rules, static_cast<uint32_t>(whole)),
       rules.Optional(rules.Sequence(
           {rules.Byte('.'), rules.Repeat(Digit(rules), 1, static_cast<uint32_t>(fraction))}))});
  CELER_ASSIGN(Dfa out, MakeDfa(rules, base, budget));
  CELER_ASSIGN(const Dfa least, MakeDfa(rules, AtLeast(rules, low, low_open), budget));
  CELER_ASSIGN(out, CombineDfas(out, least, Combine::kAnd, budget));
  if (high) {
    CELER_ASSIGN(const Dfa most, MakeDfa(rules, AtMost(rules, *high, high_open), budget));
    CELER_ASSIGN(out, CombineDfas(out, most, Combine::kAnd, budget));
  }
  return out;
}

}  // namespace

ExprId PlainJsonChar(RuleSet& rules, const CodePointSet& set) {
  CodePointSet escaped = CodePointSet::Of({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  std::vector<ExprId> parts{rules.CodePoints(set.Minus(escaped))};
  for (char32_t c = 0; c < 0x80; ++c)
    if (NeedsEscape(c) && set.Contains(c)) parts.push_back(rules.Literal(EscapeOf(c)));
  return rules.Choice(std::move(parts));
}

std::string PlainJsonString(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const utf8::CodePoint c = utf8::Decode(text);
    if (NeedsEscape(c.value))
      out += EscapeOf(c.value);
    else
      out += text.substr(0, c.length);
    text.remove_prefix(c.length);
  }
  return out;
}

ExprId JsonText::Blank() {
  return space_ == JsonSpace::kNone ? rules_.Empty() : rules_.Optional(rules_.Byte(' '));
}

ExprId JsonText::Space() {
  if (space_ != JsonSpace::kFlexible) return rules_.Empty();
  return Shared(space_rule_, "white space", [&] {
    return rules_.Optional(rules_.Choice(
        {rules_.Byte(' '),
         rules_.Sequence({rules_.Byte('\n'), rules_.Repeat(rules_.Bytes(" \t"), 0, kIndent)})}));
  });
}

ExprId JsonText::Open(char bracket) {
  return rules_.Sequence({rules_.Byte(bracket), Space()});
}
ExprId JsonText::Close(char bracket) {
  return rules_.Sequence({Space(), rules_.Byte(bracket)});
}
ExprId JsonText::Comma() {
  return rules_.Sequence({rules_.Byte(','), space_ == JsonSpace::kFlexible ? Space() : Blank()});
}
ExprId JsonText::Colon() {
  return rules_.Sequence({rules_.Byte(':'), Blank()});
}

// All but a plain ASCII character: wider ones, and escapes. No lone surrogates.
ExprId JsonText::EscapedOrWide() {
  const auto hex = [&] { return rules_.Bytes("0123456789abcdefABCDEF"); };
  const auto some = [&](std::string_view set) { return rules_.Bytes(set); };
  const ExprId two = rules_.Sequence({hex(), hex()});
  const ExprId unicode =
      rules_.Choice({rules_.Sequence({some("0123456789abcefABCEF"), hex(), two}),
                     rules_.Sequence({some("dD"), some("01234567"), two}),
                     rules_.Sequence({some("dD"), some("89abAB"), two, rules_.Literal("\\u"), some("dD"),
                                      some("cdefCDEF"), two})});
  return rules_.Choice(
      {rules_.CodePoints(CodePointSet::Of({{0x80, 0x10FFFF}})),
       rules_.Sequence({rules_.Byte('\\'), rules_.Choice({rules_.Bytes("\"\\/bfnrt"),
                                                          rules_.Sequence({rules_.Byte('u'), unicode})})})});
}

ExprId JsonText::AnyChar() {
  return rules_.Choice(
      {rules_.Byte(0x20, 0x21), rules_.Byte(0x23, 0x5B), rules_.Byte(0x5D, 0x7F), EscapedOrWide()});
}

ExprId JsonText::Quoted(ExprId content) {
  return rules_.Sequence({rules_.Byte('"'), content, rules_.Byte('"')});
}

ExprId JsonText::String() {
  return Shared(string_, "string", [&] { return Quoted(rules_.Repeat(AnyChar(), 0, kUnbounded)); });
}

ExprId JsonText::String(uint32_t min_length, uint32_t max_length) {
  if (min_length == 0 && max_length == kUnbounded) return String();
  // Long strings get one state for each place: whatever is longer than a byte is a rule of its own then.
  constexpr uint32_t kLong = 1000;
  const uint32_t places = max_length == kUnbounded ? min_length : max_length;
  if (places <= kLong) return Quoted(rules_.Repeat(AnyChar(), min_length, max_length));
  const ExprId wide = Shared(wide_, "character", [&] { return EscapedOrWide(); });
  const ExprId character =
      rules_.Choice({rules_.Byte(0x20, 0x21), rules_.Byte(0x23, 0x5B), rules_.Byte(0x5D, 0x7F), wide});
  return Quoted(rules_.Repeat(character, min_length, max_length));
}

ExprId JsonText::Integer() {
  return Shared(integer_, "integer", [&] {
    return rules_.Choice(
        {rules_.Byte('0'), rules_.Sequence({rules_.Optional(rules_.Byte('-')), Digit(rules_, '1'),
                                            rules_.Repeat(Digit(rules_), 0, kIntegerDigits - 1)})});
  });
}

ExprId JsonText::Number() {
  return Shared(number_, "number", [&] {
    return rules_.Sequence(
        {rules_.Optional(rules_.Byte('-')), Whole(rules_, kIntegerDigits),
         rules_.Optional(
             rules_.Sequence({rules_.Byte('.'), rules_.Repeat(Digit(rules_), 1, kFractionDigits)})),
         rules_.Optional(rules_.Sequence({rules_.Bytes("eE"), rules_.Optional(rules_.Bytes("+-")),
                                          rules_.Repeat(Digit(rules_), 1, kExponentDigits)}))});
  });
}

ExprId JsonText::Boolean() {
  return rules_.Choice({rules_.Literal("true"), rules_.Literal("false")});
}
ExprId JsonText::Null() {
  return rules_.Literal("null");
}

ExprId JsonText::Value() {
  return Shared(value_, "value", [&] {
    return rules_.Choice({String(), Number(), Boolean(), Null(), Object(), Array()});
  });
}

ExprId JsonText::Object() {
  return Shared(object_, "object", [&] {
    const ExprId member = rules_.Sequence({String(), Colon(), Value()});
    return rules_.Sequence({Open('{'),
                            rules_.Optional(rules_.Sequence(
                                {member, rules_.Repeat(rules_.Sequence({Comma(), member}), 0, kUnbounded)})),
                            Close('}')});
  });
}

ExprId JsonText::Array() {
  return Shared(array_, "array", [&] {
    return rules_.Sequence(
        {Open('['),
         rules_.Optional(
             rules_.Sequence({Value(), rules_.Repeat(rules_.Sequence({Comma(), Value()}), 0, kUnbounded)})),
         Close(']')});
  });
}

ExprId JsonText::Literal(const nlohmann::ordered_json& value) {
  std::vector<ExprId> parts;
  if (value.is_string())
    return rules_.Literal('"' + PlainJsonString(value.get_ref<const std::string&>()) + '"');
  if (value.is_array()) {
    parts.push_back(Open('['));
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) parts.push_back(Comma());
      parts.push_back(Literal(value[i]));
    }
    parts.push_back(Close(']'));
    return rules_.Sequence(std::move(parts));
  }
  if (value.is_object()) {
    parts.push_back(Open('{'));
    for (auto at = value.begin(); at != value.end(); ++at) {
      if (at != value.begin()) parts.push_back(Comma());
      parts.push_back(rules_.Literal('"' + PlainJsonString(at.key()) + '"'));
      parts.push_back(Colon());
      parts.push_back(Literal(at.value()));
    }
    parts.push_back(Close('}'));
    return rules_.Sequence(std::move(parts));
  }
  // 2.0 is the same number as 2, and most would write it so.
  if (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
      std::abs(value.get<double>()) < 1e15)
    return rules_.Choice(
        {rules_.Literal(value.dump()), rules_.Literal(std::to_string(value.get<int64_t>()))});
  return rules_.Literal(value.dump());
}

Decimal Decimal::Of(const nlohmann::ordered_json& number) {
  std::string text;
  if (number.is_number_float()) {
    std::array<char, 512> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number.get<double>(),
                                   std::chars_format::fixed);
    text.assign(buffer.data(), end.ptr);
  } else {
    text = number.dump();
  }
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.erase(0, 1);
  }
  const size_t point = text.find('.');
  out.whole = text.substr(0, point);
  if (point != std::string::npos) {
    out.fraction = text.substr(point + 1);
    out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  }
  if (out.is_zero()) out.negative = false;
  return out;
}

Decimal Decimal::Negated() const {
  Decimal out = *this;
  out.negative = !is_zero() && !negative;
  return out;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = 0;
  if (a.whole.size() != b.whole.size())
    order = a.whole.size() < b.whole.size() ? -1 : 1;
  else if (const int whole = a.whole.compare(b.whole); whole != 0)
    order = whole < 0 ? -1 : 1;
  else if (const int fraction = a.fraction.compare(b.fraction); fraction != 0)
    order = fraction < 0 ? -1 : 1;  // no trailing zeros, so a prefix is the smaller
  return a.negative ? -order : order;
}

Result<Dfa> RangeDfa(const NumberRange& range, bool integer, Budget& budget) {
  const Decimal zero;
  RuleSet rules;
  std::vector<ExprId> parts;
  if (!range.high || Compare(*range.high, zero) >= 0) {
    const bool from_zero = !range.low || range.low->negative;
    CELER_ASSIGN(Dfa positive, UnsignedDfa(from_zero ? zero : *range.low, !from_zero && range.low_open,
                                           range.high, range.high_open, integer, budget));
    parts.push_back(rules.Automaton(std::move(positive)));
  }
  if (!range.low || range.low->negative) {
    const bool to_zero = !range.high || !range.high->negative;
    std::optional<Decimal> most;
    if (range.low) most = range.low->Negated();
    CELER_ASSIGN(Dfa negative, UnsignedDfa(to_zero ? zero : range.high->Negated(), to_zero || range.high_open,
                                           most, range.low_open, integer, budget));
    parts.push_back(rules.Sequence({rules.Byte('-'), rules.Automaton(std::move(negative))}));
  }
  return MakeDfa(rules, rules.Choice(std::move(parts)), budget);
}

Dfa MultipleDfa(uint32_t factor) {
  // State 0 is the start, 1 after a sign, 2 + r after digits with that remainder.
  Dfa dfa;
  dfa.states.resize(factor + size_t{2});
  for (uint32_t i = 0; i < dfa.states.size(); ++i) {
    const uint64_t remainder = i < 2 ? 0 : i - 2;
    DfaState& state = dfa.states[i];
    state.mask_class = i;
    if (i == 0) state.edges.push_back({'-', '-', 1});
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const auto byte = static_cast<uint8_t>('0' + digit);
      state.edges.push_back({byte, byte, 2 + static_cast<uint32_t>((remainder * 10 + digit) % factor)});
    }
    state.accept = i == 2;
  }
  return dfa;
}

}  // namespace celer::grammar
