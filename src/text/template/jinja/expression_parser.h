// The expressions of the language; parser.cc builds the statements on top.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/lexer.h"

namespace celer::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(Tokenize(source)), budget_(Limits{}) {
    for (const char* name : {"loop", "caller", "kwargs", "varargs"}) Intern(name);  // as WellKnownName
  }
  ~ExpressionParser() = default;

  // Bounds both the recursion of the parser and, by way of Expr::depth, that of everything that walks the
  // tree.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > Limits::kSourceDepth) parser_.Fail("the template is nested too deeply");
    }
    ~Nested() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

  const Token& Current() const { return tokens_[at_]; }
  const Token& Peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& Next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool Is(TokenKind kind) const { return Current().kind == kind; }
  bool IsOp(std::string_view op) const { return Current().IsOp(op); }
  bool IsName(std::string_view name) const { return Current().IsName(name); }
  bool SkipOp(std::string_view op) { return IsOp(op) ? (Next(), true) : false; }
  bool SkipName(std::string_view name) { return IsName(name) ? (Next(), true) : false; }

  [[noreturn]] void Fail(const std::string& message) const { throw TemplateError(message, Current().line); }

  std::string Describe(const Token& token) const {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kVarEnd:
        return "'}}'";
      case TokenKind::kString:
        return "a string";
      default:
        return "'" + token.text + "'";
    }
  }
  void ExpectOp(std::string_view op) {
    if (!SkipOp(op)) Fail("expected '" + std::string(op) + "', got " + Describe(Current()));
  }
  void Expect(TokenKind kind, const char* what) {
    if (!Is(kind)) Fail(std::string("expected ") + what + ", got " + Describe(Current()));
    Next();
  }
  std::string ExpectName() {
    if (!Is(TokenKind::kName)) Fail("expected a name, got " + Describe(Current()));
    return Next().text;
  }

  int Intern(const std::string& name) {
    auto [at, added] = ids_.try_emplace(name, static_cast<int>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }

  ExprPtr New(ExprKind kind) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = Current().line;
    e->autoescape = autoescape_;
    return e;
  }
  void Adopt(Expr& parent, ExprPtr child) const {
    if (child) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > Limits::kSourceDepth) Fail("the expression is nested too deeply");
    }
    parent.children.push_back(std::move(child));
  }
  void AdoptDepth(Expr& parent, const ExprPtr& child) const {
    if (child) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > Limits::kSourceDepth) Fail("the expression is nested too deeply");
  }

  // --- Assignment targets: names, namespace attributes, and tuples of them ---
  ExprPtr ParseTarget(bool with_namespace, std::string_view end_name = {});
  ExprPtr ParseTargetItem(bool with_namespace);
  // --- Expressions, from the loosest binding to the tightest ---
  bool AtTupleEnd(std::string_view end_name) const;
  ExprPtr ParseTuple(bool with_cond = true, std::string_view end_name = {}, bool in_parentheses = false);
  ExprPtr ParseExpression();
  ExprPtr ParseOr() { return ParseLogic(ExprKind::kOr, "or", &ExpressionParser::ParseAnd); }
  ExprPtr ParseAnd() { return ParseLogic(ExprKind::kAnd, "and", &ExpressionParser::ParseNot); }
  ExprPtr ParseLogic(ExprKind kind, std::string_view word, ExprPtr (ExpressionParser::*operand)());
  ExprPtr ParseNot();
  std::optional<Op> CompareOp();
  ExprPtr ParseCompare();
  using MathOps = std::initializer_list<std::pair<std::string_view, Op>>;
  // Operators of one rank, joined in one node from left to right (also **: Jinja reads 2**3**2 as (2**3)**2).
  ExprPtr ParseMath(MathOps ops, ExprPtr (ExpressionParser::*operand)());
  ExprPtr ParseSum() { return ParseMath({{"+", Op::kAdd}, {"-", Op::kSub}}, &ExpressionParser::ParseConcat); }
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower() { return ParseMath({{"**", Op::kPow}}, &ExpressionParser::ParseFilteredUnary); }
  ExprPtr ParseFilteredUnary() { return ParseUnary(true); }
  ExprPtr ParseUnary(bool with_filters);
  ExprPtr Constant(Value value) const;
  ExprPtr ParseName();
  ExprPtr ParsePrimary();
  ExprPtr ParsePostfix(ExprPtr e);
  ExprPtr ParseDot(ExprPtr object);
  ExprPtr ParseSubscript(ExprPtr object);
  ExprPtr ParseCall(ExprPtr callee);
  void ParseArguments(Expr& e);
  std::string DottedName();
  // `|name(...)` as often as it stands there; `inline_first`: the first one has no bar.
  ExprPtr ParseFilters(ExprPtr e, bool inline_first);
  ExprPtr ParseFiltersAndTests(ExprPtr e);
  bool StartsTestArgument() const;
  ExprPtr ParseTest(ExprPtr e);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  Autoescape autoescape_ = Autoescape::kOff;
  std::vector<MacroDef*> open_macros_;  // those whose body is being parsed
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> ids_;
  Budget budget_;
};

}  // namespace celer::jinja
