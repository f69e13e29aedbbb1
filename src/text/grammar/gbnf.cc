#include "text/grammar/gbnf.h"

#include <map>
#include <optional>
#include <string>

#include "base/utf8.h"
#include "io/file/printable.h"
#include "text/unicode/hex_digit.h"

namespace celer::grammar {
namespace {

constexpr int kMaxDepth = 200;
constexpr uint32_t kMaxCount = 100'000;
constexpr size_t kMaxExpressions = 300'000;

class Parser {
 public:
  Parser(std::string_view text, RuleSet& rules) : text_(text), rules_(rules) {}

  Result<RuleId> Parse() {
    if (const size_t bad = utf8::FindInvalid(text_); bad != std::string_view::npos)
      return Error::Invalid("the grammar is not UTF-8 at byte ", bad);
    for (SkipSpace(); !Done(); SkipSpace()) {
      const std::string_view name = Name();
      if (name.empty()) return Wrong("expected the name of a rule");
      SkipSpace();
      if (!Take("::=")) return Wrong("expected '::='");
      const RuleId rule = RuleOf(name);
      if (defined_[rule]) return Wrong("rule '" + Printable(name) + "' is defined twice");
      defined_[rule] = true;
      CELER_ASSIGN(const ExprId body, Alternatives(0));
      rules_.SetBody(rule, body);
    }
    for (const auto& [rule, is_defined] : defined_)
      if (!is_defined)
        return Error::Invalid("grammar: rule '", Printable(rules_.name(rule)), "' is used and not defined");
    const auto root = names_.find("root");
    if (root == names_.end()) return Error::Invalid("grammar: there is no rule 'root' to start with");
    return root->second;
  }

 private:
  Error Wrong(std::string_view what) const {
    size_t line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    return Error::Invalid("grammar, line ", line, ": ", what);
  }

  bool Done() const { return at_ >= text_.size(); }
  char Peek() const { return Done() ? '\0' : text_[at_]; }
  bool Take(std::string_view text) {
    if (!text_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  void SkipSpace() {
    while (!Done()) {
      if (Peek() == '#') {
        while (!Done() && Peek() != '\n') ++at_;
      } else if (Peek() == ' ' || Peek() == '\t' || Peek() == '\r' || Peek() == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool IsNameChar(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string_view Name() {
    const size_t begin = at_;
    while (!Done() && IsNameChar(Peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  RuleId RuleOf(std::string_view name) {
    const auto [at, is_new] = names_.emplace(std::string(name), 0);
    if (is_new) {
      at->second = rules_.AddRule(std::string(name));
      defined_[at->second] = false;
    }
    return at->second;
  }

  // Whether the next rule begins here: rules may go over several lines.
  bool AtRule() {
    const size_t before = at_;
    const bool named = !Name().empty();
    SkipSpace();
    const bool found = named && text_.substr(at_).starts_with("::=");
    at_ = before;
    return found;
  }

  Result<ExprId> Alternatives(int depth) {
    if (depth > kMaxDepth) return Wrong("groups are nested too deeply");
    std::vector<ExprId> parts;
    do {
      std::vector<ExprId> sequence;
      for (SkipSpace(); !Done() && Peek() != '|' && Peek() != ')' && !AtRule(); SkipSpace()) {
        CELER_ASSIGN(ExprId part, Part(depth));
        CELER_ASSIGN(part, Repeated(part));
        sequence.push_back(part);
      }
      parts.push_back(rules_.Sequence(std::move(sequence)));
    } while (Take("|"));
    if (depth == 0 && Peek() == ')') return Wrong("')' without '('");
    return rules_.Choice(std::move(parts));
  }

  Result<ExprId> Repeated(ExprId part) {
    for (int nested = 0;; ++nested) {
      SkipSpace();
      // Each adds a level to the expression.
      if (nested > kMaxDepth) return Wrong("too many repetitions of one part");
      if (Take("*")) {
        part = rules_.Repeat(part, 0, kUnbounded);
      } else if (Take("+")) {
        part = rules_.Repeat(part, 1, kUnbounded);
      } else if (Take("?")) {
        part = rules_.Optional(part);
      } else if (Take("{")) {
        SkipSpace();
        CELER_ASSIGN(const auto low, Number());
        SkipSpace();
        auto high = low;
        if (Take(",")) {
          SkipSpace();
          CELER_ASSIGN(high, Number());
          SkipSpace();
          if (!low && !high) return Wrong("a repetition without a count");
        } else if (!low) {
          return Wrong("a repetition without a count");
        }
        if (!Take("}")) return Wrong("expected '}'");
        const uint32_t min = low.value_or(0), max = high.value_or(kUnbounded);
        if (min > max) return Wrong("a count whose least is above its most");
        part = rules_.Repeat(part, min, max);
      } else {
        return part;
      }
    }
  }

  Result<std::optional<uint32_t>> Number() {
    if (Peek() < '0' || Peek() > '9') return std::optional<uint32_t>();
    uint64_t value = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
      if (value > kMaxCount) return Wrong("a count above 100000");
    }
    return std::optional<uint32_t>(static_cast<uint32_t>(value));
  }

  Result<ExprId> Part(int depth) {
    if (rules_.size() > kMaxExpressions) return Wrong("the grammar is too large from here on");
    if (Take("(")) {
      if (Peek() == '=') return Wrong("lookahead, '(=', is not supported");
      CELER_ASSIGN(const ExprId body, Alternatives(depth + 1));
      if (!Take(")")) return Wrong("'(' without ')'");
      return body;
    }
    if (Take("\"")) {
      std::string bytes;
      while (!Take("\"")) {
        if (Done() || Peek() == '\n') return Wrong("a text without its closing quote");
        CELER_ASSIGN(const char32_t c, Character());
        utf8::Append(c, bytes);
      }
      return rules_.Literal(bytes);
    }
    if (Take("[")) return Class();
    if (Take(".")) return rules_.CodePoints(CodePointSet::All());
    const std::string_view name = Name();
    if (name.empty()) return Wrong(std::string("unexpected '") + Printable(text_.substr(at_, 1)) + "'");
    return rules_.Call(RuleOf(name));
  }

  Result<ExprId> Class() {
    const bool negated = Take("^");
    CodePointSet set;
    while (!Take("]")) {
      if (Done() || Peek() == '\n') return Wrong("'[' without ']'");
      CELER_ASSIGN(const char32_t low, Character());
      char32_t high = low;
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        CELER_ASSIGN(high, Character());
        if (high < low) return Wrong("a range that ends before it begins");
      }
      set.Add(low, high);
    }
    return rules_.CodePoints(negated ? set.Complement() : set);
  }

  Result<char32_t> Character() {
    if (!Take("\\")) {
      const utf8::CodePoint c = utf8::Decode(text_.substr(at_));
      at_ += c.length;
      return c.value;
    }
    if (Done()) return Wrong("a '\\' at the end");
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      case '\\':
      case '"':
      case '\'':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
      case '.':
        return static_cast<char32_t>(c);
      default:
        return Wrong(std::string("unknown escape '\\") + Printable({&c, 1}) + "'");
    }
  }

  Result<char32_t> Hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = HexDigit(Peek());
      if (digit < 0) return Wrong("a character code that is not hexadecimal");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return Wrong("a code that is no character");
    return value;
  }

  std::string_view text_;
  RuleSet& rules_;
  std::map<std::string, RuleId, std::less<>> names_;
  std::map<RuleId, bool> defined_;
  size_t at_ = 0;
};

}  // namespace

Result<RuleId> AddGbnf(std::string_view text, RuleSet& rules, Budget& budget) {
  if (!budget.Spend(text.size())) return budget.TooManySteps();
  return Parser(text, rules).Parse();
}

}  // namespace celer::grammar
