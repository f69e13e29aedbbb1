#include "text/grammar/regex.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "io/file/printable.h"
#include "text/grammar/json_text.h"
#include "text/unicode/hex_digit.h"

namespace celer::grammar {
namespace {

constexpr int kMaxGroups = 200;  // nested
constexpr uint32_t kMaxCount = 100'000;
constexpr size_t kMaxExpressions = 300'000;

CodePointSet Digits() {
  return CodePointSet::Of({{'0', '9'}});
}
CodePointSet WordChars() {
  return CodePointSet::Of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
}
// As ECMAScript has it.
CodePointSet Spaces() {
  return CodePointSet::Of({{0x9, 0xD},
                           {0x20, 0x20},
                           {0xA0, 0xA0},
                           {0x1680, 0x1680},
                           {0x2000, 0x200A},
                           {0x2028, 0x2029},
                           {0x202F, 0x202F},
                           {0x205F, 0x205F},
                           {0x3000, 0x3000},
                           {0xFEFF, 0xFEFF}});
}

class Parser {
 public:
  Parser(std::string_view pattern, const RegexOptions& options, RuleSet& rules)
      : pattern_(pattern), options_(options), rules_(rules) {}

  Result<ExprId> Parse() {
    if (const size_t bad = utf8::FindInvalid(pattern_); bad != std::string_view::npos)
      return Error::Invalid("the regular expression is not UTF-8 at byte ", bad);
    CELER_ASSIGN(const ExprId body, Alternatives(0));
    if (at_ < pattern_.size()) return Wrong("')' without '('");
    if (!options_.search) return body;
    const ExprId any = rules_.Repeat(Chars(CodePointSet::All()), 0, kUnbounded);
    return rules_.Sequence({any, body, any});
  }

 private:
  Error Wrong(std::string_view what) const {
    return Error::Invalid("regular expression '", Printable(pattern_), "': ", what, " at byte ", at_);
  }
  Error Unsupported(std::string_view what) const {
    return Error::Unsupported("regular expression '", Printable(pattern_), "': ", what, " at byte ", at_,
                              " is not supported");
  }

  bool Done() const { return at_ >= pattern_.size(); }
  char Peek() const { return Done() ? '\0' : pattern_[at_]; }
  bool Take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t TakeCodePoint() {
    const utf8::CodePoint c = utf8::Decode(pattern_.substr(at_));
    at_ += c.length;
    return c.value;
  }

  // Each set is written out once: a pattern of many dots is no larger than one.
  ExprId Chars(const CodePointSet& set) {
    const auto [at, is_new] = chars_.emplace(set.ranges(), 0);
    if (is_new) at->second = options_.json_text ? PlainJsonChar(rules_, set) : rules_.CodePoints(set);
    return at->second;
  }

  Result<ExprId> Alternatives(int depth) {
    if (depth > kMaxGroups) return Unsupported("so deep a nesting of groups");
    std::vector<ExprId> parts;
    do {
      std::vector<ExprId> sequence;
      while (!Done() && Peek() != '|' && Peek() != ')') {
        CELER_ASSIGN(const ExprId atom, Atom(depth));
        CELER_ASSIGN(const ExprId repeated, Quantified(atom));
        sequence.push_back(repeated);
      }
      parts.push_back(rules_.Sequence(std::move(sequence)));
    } while (Take("|"));
    return rules_.Choice(std::move(parts));
  }

  Result<ExprId> Quantified(ExprId atom) {
    for (int count = 0;; ++count) {
      uint32_t min = 0, max = kUnbounded;
      const size_t before = at_;
      if (Take("*")) {
      } else if (Take("+")) {
        min = 1;
      } else if (Take("?")) {
        max = 1;
      } else if (Peek() == '{') {
        CELER_ASSIGN(const bool is_count, Count(&min, &max));
        if (!is_count) return atom;
      } else {
        return atom;
      }
      if (count > 0) {
        at_ = before;
        return Wrong("nothing to repeat");
      }
      if (Take("+")) {
        --at_;
        return Unsupported("a possessive quantifier");
      }
      Take("?");  // lazy or not, the texts are the same
      atom = rules_.Repeat(atom, min, max);
    }
  }

  // {3}, {3,}, {3,5}, and {,5}. Anything else is a plain brace.
  Result<bool> Count(uint32_t* min, uint32_t* max) {
    const size_t before = at_++;
    const auto number = [&]() -> std::optional<uint64_t> {
      if (Peek() < '0' || Peek() > '9') return std::nullopt;
      uint64_t value = 0;
      while (!Done() && Peek() >= '0' && Peek() <= '9' && value <= kMaxCount)
        value = value * 10 + static_cast<uint64_t>(pattern_[at_++] - '0');
      return value;
    };
    const auto low = number();
    const bool comma = Take(",");
    const auto high = comma ? number() : low;
    if (!Take("}") || (!low && !high)) {
      if (low.value_or(0) > kMaxCount || high.value_or(0) > kMaxCount)
        return Unsupported("a count above 100000");
      at_ = before;
      return false;
    }
    if (low.value_or(0) > kMaxCount || high.value_or(0) > kMaxCount)
      return Unsupported("a count above 100000");
    *min = static_cast<uint32_t>(low.value_or(0));
    *max = high ? static_cast<uint32_t>(*high) : kUnbounded;
    if (*min > *max) return Wrong("a count whose least is above its most");
    return true;
  }

  Result<ExprId> Atom(int depth) {
    if (rules_.size() > kMaxExpressions) return Unsupported("so large a pattern");
    switch (Peek()) {
      case '(':
        return Group(depth);
      case '[': {
        CELER_ASSIGN(const CodePointSet set, Class());
        return Chars(set);
      }
      case '.':
        ++at_;
        return Chars((options_.json_text ? CodePointSet::Of({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}})
                                         : CodePointSet::Of({{'\n', '\n'}}))
                         .Complement());
      case '^':
        ++at_;
        return rules_.AtBegin();
      case '$':
        ++at_;
        return rules_.AtEnd();
      case '*':
      case '+':
      case '?':
        return Wrong("nothing to repeat");
      case '\\': {
        if (Take("\\A")) return rules_.AtBegin();
        if (Take("\\z") || Take("\\Z")) return rules_.AtEnd();
        CELER_ASSIGN(const CodePointSet set, Escape(false));
        return Chars(set);
      }
      case '{': {  // as Python has it: a brace that is no count is a character
        uint32_t min = 0, max = 0;
        CELER_ASSIGN(const bool is_count, Count(&min, &max));
        if (is_count) return Wrong("nothing to repeat");
        [[fallthrough]];
      }
      default: {
        const char32_t c = TakeCodePoint();
        return Chars(CodePointSet::Of({{c, c}}));
      }
    }
  }

  Result<ExprId> Group(int depth) {
    ++at_;
    if (Take("?")) {
      if (Take("P<") || (Peek() == '<' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != '=' &&
                         pattern_[at_ + 1] != '!' && Take("<"))) {
        while (!Done() && Peek() != '>') ++at_;
        if (!Take(">")) return Wrong("a group name without '>'");
      } else if (Peek() == '=' || Peek() == '!') {
        return Unsupported("lookahead");
      } else if (Peek() == '<') {
        return Unsupported("look-behind");
      } else if (!Take(":")) {
        return Unsupported("a group with flags");
      }
    }
    CELER_ASSIGN(const ExprId body, Alternatives(depth + 1));
    if (!Take(")")) return Wrong("'(' without ')'");
    return body;
  }

  Result<CodePointSet> Class() {
    ++at_;
    const bool negated = Take("^");
    CodePointSet set;
    for (bool first = true;; first = false) {
      if (Done()) return Wrong("'[' without ']'");
      if (Peek() == ']' && !first) break;
      if (Peek() == ']' && first) {
        // [] is nothing and [^] anything in ECMAScript; elsewhere the bracket is a character. Too easily
        // mistaken.
        return Unsupported("']' as the first character of a class; write '\\]'");
      }
      if (Peek() == '[' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == ':')
        return Unsupported("a POSIX class");
      CELER_ASSIGN(CodePointSet low, ClassAtom());
      const bool single = low.ranges().size() == 1 && low.ranges()[0].first == low.ranges()[0].second;
      if (single && Peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        CELER_ASSIGN(const CodePointSet high, ClassAtom());
        if (high.ranges().size() != 1 || high.ranges()[0].first != high.ranges()[0].second)
          return Wrong("a range that ends in a class");
        if (high.ranges()[0].first < low.ranges()[0].first)
          return Wrong("a range that ends before it begins");
        set.Add(low.ranges()[0].first, high.ranges()[0].first);
      } else {
        set.Add(low);
      }
    }
    ++at_;
    return negated ? set.Complement() : set;
  }

  Result<CodePointSet> ClassAtom() {
    if (Peek() == '\\') return Escape(true);
    const char32_t c = TakeCodePoint();
    return CodePointSet::Of({{c, c}});
  }

  Result<char32_t> Hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const int digit = HexDigit(Peek());
      if (digit < 0) return Wrong("a character code that is not hexadecimal");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  Result<CodePointSet> Escape(bool in_class) {
    ++at_;
    if (Done()) return Wrong("a '\\' at the end");
    const auto one = [](char32_t c) { return CodePointSet::Of({{c, c}}); };
    const char c = Peek();
    if (static_cast<unsigned char>(c) >= 0x80) return one(TakeCodePoint());
    ++at_;
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordChars();
      case 'W':
        return WordChars().Complement();
      case 's':
        return Spaces();
      case 'S':
        return Spaces().Complement();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'a':
        return one('\a');
      case '0':
        if (Peek() >= '0' && Peek() <= '9') return Unsupported("an octal character code");
        return one('\0');
      case 'b':
        if (in_class) return one('\b');
        return Unsupported("a word boundary");
      case 'B':
        return Unsupported("a word boundary");
      case 'c': {
        const char letter = Peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')))
          return Wrong("'\\c' without a letter");
        ++at_;
        return one(static_cast<char32_t>(letter & 31));
      }
      case 'x': {
        CELER_ASSIGN(const char32_t value, Hex(2));
        return one(value);
      }
      case 'u': {
        if (Take("{")) {
          size_t digits = 0;
          while (at_ + digits < pattern_.size() && pattern_[at_ + digits] != '}') ++digits;
          if (digits == 0 || digits > 6) return Wrong("a character code without one to six digits");
          CELER_ASSIGN(const char32_t value, Hex(digits));
          ++at_;
          if (value > 0x10FFFF) return Wrong("a character code above 10FFFF");
          return one(value);
        }
        CELER_ASSIGN(char32_t value, Hex(4));
        if (value >= 0xD800 && value < 0xDC00 && Take("\\u")) {
          CELER_ASSIGN(const char32_t low, Hex(4));
          if (low < 0xDC00 || low > 0xDFFF) return Wrong("half a surrogate pair");
          value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        }
        return one(value);
      }
      case 'p':
      case 'P':
        return Unsupported("a Unicode property");
      case 'k':
        return Unsupported("a back reference");
      default:
        if (c >= '1' && c <= '9') return Unsupported("a back reference");
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Unsupported("this escape");
        return one(static_cast<unsigned char>(c));
    }
  }

  std::string_view pattern_;
  const RegexOptions& options_;
  RuleSet& rules_;
  size_t at_ = 0;
  std::map<std::vector<std::pair<char32_t, char32_t>>, ExprId> chars_;
};

}  // namespace

Result<Dfa> RegexDfa(std::string_view pattern, const RegexOptions& options, Budget& budget) {
  RuleSet rules;
  CELER_ASSIGN(const ExprId body, Parser(pattern, options, rules).Parse());
  if (!budget.Spend(rules.size())) return budget.TooManySteps();
  return MakeDfa(rules, body, budget);
}

}  // namespace celer::grammar
