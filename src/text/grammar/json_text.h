// How JSON is written: the pieces that schemas are compiled to.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/expression.h"
#include "text/grammar/grammar.h"

namespace celer::grammar {

// One character of `set` inside a JSON string, in its plain spelling: itself, or its shortest escape. Every
// text has one plain spelling, so that names can be told apart byte by byte.
ExprId PlainJsonChar(RuleSet& rules, const CodePointSet& set);
// The plain spelling of a text, without quotes.
std::string PlainJsonString(std::string_view text);

class JsonText {
 public:
  JsonText(RuleSet& rules, JsonSpace space) : rules_(rules), space_(space) {}

  ExprId Value();   // anything
  ExprId Object();  // any object
  ExprId Array();
  ExprId String();
  ExprId String(uint32_t min_length, uint32_t max_length);  // in code points
  ExprId Number();
  ExprId Integer();
  ExprId Boolean();
  ExprId Null();
  ExprId Literal(const nlohmann::ordered_json& value);  // white space as anywhere else
  ExprId Quoted(ExprId content);

  ExprId Open(char bracket);   // the bracket and the space after it
  ExprId Close(char bracket);  // the space before it, and the bracket
  ExprId Comma();
  ExprId Colon();

 private:
  ExprId Space();
  ExprId Blank();
  ExprId AnyChar();
  ExprId EscapedOrWide();

  // Made when first asked for.
  template <class F>
  ExprId Shared(std::optional<RuleId>& rule, const char* name, F&& body) {
    if (!rule) {
      rule = rules_.AddRule(name);
      const ExprId made = body();
      rules_.SetBody(*rule, made);
    }
    return rules_.Call(*rule);
  }

  RuleSet& rules_;
  JsonSpace space_;
  std::optional<RuleId> value_, object_, array_, string_, number_, integer_, space_rule_, wide_;
};

// A decimal number, exactly.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros

  static Decimal Of(const nlohmann::ordered_json& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  Decimal Negated() const;
};
int Compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  std::optional<Decimal> low = {}, high = {};
  bool low_open = false, high_open = false;  // the bound itself is not allowed
};

// Numbers in the range, without exponents. Integers are written without a fraction.
Result<Dfa> RangeDfa(const NumberRange& range, bool integer, Budget& budget);
// Integers that are multiples of `factor`.
Dfa MultipleDfa(uint32_t factor);

}  // namespace celer::grammar
