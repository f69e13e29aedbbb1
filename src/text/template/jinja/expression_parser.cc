#include "text/template/jinja/expression_parser.h"

#include "text/template/jinja/builtins.h"

namespace celer::jinja {

ExprPtr ExpressionParser::ParseTarget(bool with_namespace, std::string_view end_name) {
  const size_t start = at_;
  ExprPtr first = ParseTargetItem(with_namespace);
  if (!IsOp(",")) return first;
  ExprPtr tuple = New(ExprKind::kTuple);
  Adopt(*tuple, std::move(first));
  while (SkipOp(",")) {
    if (IsOp("=") || Is(TokenKind::kBlockEnd) || (!end_name.empty() && IsName(end_name))) break;
    Adopt(*tuple, ParseTargetItem(with_namespace));
  }
  tuple->line = tokens_[start].line;
  return tuple;
}

ExprPtr ExpressionParser::ParseTargetItem(bool with_namespace) {
  Nested nested(*this);
  if (SkipOp("(")) {
    ExprPtr tuple = New(ExprKind::kTuple);
    bool comma = false;
    while (!IsOp(")")) {
      Adopt(*tuple, ParseTargetItem(with_namespace));
      if (!SkipOp(",")) break;
      comma = true;
    }
    ExpectOp(")");
    if (!comma && tuple->children.size() == 1) return std::move(tuple->children[0]);
    return tuple;
  }
  static constexpr std::string_view kConstants[] = {"true", "false", "True", "False", "none", "None"};
  if (!Is(TokenKind::kName) || std::ranges::find(kConstants, Current().text) != std::end(kConstants))
    Fail("cannot assign to " + Describe(Current()));
  ExprPtr e = New(ExprKind::kName);
  e->name = Intern(Next().text);
  if (with_namespace && SkipOp(".")) {
    e->kind = ExprKind::kNsRef;
    e->text = ExpectName();
  }
  return e;
}

bool ExpressionParser::AtTupleEnd(std::string_view end_name) const {
  return Is(TokenKind::kVarEnd) || Is(TokenKind::kBlockEnd) || IsOp(")") ||
         (!end_name.empty() && IsName(end_name));
}

ExprPtr ExpressionParser::ParseTuple(bool with_cond, std::string_view end_name, bool in_parentheses) {
  ExprPtr tuple = New(ExprKind::kTuple);
  bool is_tuple = false;
  while (!AtTupleEnd(end_name)) {
    Adopt(*tuple, with_cond ? ParseExpression() : ParseOr());
    if (!IsOp(",")) break;
    is_tuple = true;
    Next();
  }
  if (is_tuple) return tuple;
  if (!tuple->children.empty()) return std::move(tuple->children[0]);
  if (!in_parentheses) Fail("expected an expression, got " + Describe(Current()));
  return tuple;
}

ExprPtr ExpressionParser::ParseExpression() {
  Nested nested(*this);
  ExprPtr value = ParseOr();
  while (IsName("if")) {
    ExprPtr cond = New(ExprKind::kCond);
    Next();
    Adopt(*cond, ParseOr());
    Adopt(*cond, std::move(value));
    Adopt(*cond, SkipName("else") ? ParseExpression() : nullptr);
    value = std::move(cond);
  }
  return value;
}

ExprPtr ExpressionParser::ParseLogic(ExprKind kind, std::string_view word,
                                     ExprPtr (ExpressionParser::*operand)()) {
  ExprPtr first = (this->*operand)();
  if (!IsName(word)) return first;
  ExprPtr e = New(kind);
  Adopt(*e, std::move(first));
  while (SkipName(word)) Adopt(*e, (this->*operand)());
  return e;
}

ExprPtr ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  Nested nested(*this);
  ExprPtr e = New(ExprKind::kNot);
  Next();
  Adopt(*e, ParseNot());
  return e;
}

std::optional<Op> ExpressionParser::CompareOp() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt}, {"<=", Op::kLe}, {">", Op::kGt}, {">=", Op::kGe}};
  for (const auto& [text, op] : kOps)
    if (SkipOp(text)) return op;
  if (SkipName("in")) return Op::kIn;
  if (IsName("not") && Peek().IsName("in")) {
    Next();
    Next();
    return Op::kNotIn;
  }
  return std::nullopt;
}

ExprPtr ExpressionParser::ParseCompare() {
  ExprPtr first = ParseSum();
  std::optional<Op> op = CompareOp();
  if (!op) return first;
  ExprPtr e = New(ExprKind::kCompare);
  Adopt(*e, std::move(first));
  for (; op; op = CompareOp()) {
    e->ops.push_back(*op);
    Adopt(*e, ParseSum());
  }
  return e;
}

ExprPtr ExpressionParser::ParseMath(MathOps ops, ExprPtr (ExpressionParser::*operand)()) {
  ExprPtr value = (this->*operand)();
  ExprPtr chain;
  while (true) {
    const auto* found = std::ranges::find_if(ops, [&](const auto& o) { return IsOp(o.first); });
    if (found == ops.end()) break;
    if (!chain) {
      chain = New(ExprKind::kMath);
      Adopt(*chain, std::move(value));
    }
    Next();
    chain->ops.push_back(found->second);
    Adopt(*chain, (this->*operand)());
  }
  return chain ? std::move(chain) : std::move(value);
}

ExprPtr ExpressionParser::ParseConcat() {
  ExprPtr first = ParseProduct();
  if (!IsOp("~")) return first;
  ExprPtr e = New(ExprKind::kConcat);
  Adopt(*e, std::move(first));
  while (SkipOp("~")) Adopt(*e, ParseProduct());
  return e;
}

ExprPtr ExpressionParser::ParseProduct() {
  return ParseMath({{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}},
                   &ExpressionParser::ParsePower);
}

ExprPtr ExpressionParser::ParseUnary(bool with_filters) {
  Nested nested(*this);
  ExprPtr e;
  if (IsOp("-") || IsOp("+")) {
    e = New(IsOp("-") ? ExprKind::kNegate : ExprKind::kPlus);
    Next();
    Adopt(*e, ParseUnary(false));
  } else {
    e = ParsePrimary();
  }
  e = ParsePostfix(std::move(e));
  return with_filters ? ParseFiltersAndTests(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::Constant(Value value) const {
  ExprPtr e = New(ExprKind::kConst);
  e->constant = std::move(value);
  return e;
}

ExprPtr ExpressionParser::ParseName() {
  ExprPtr e = New(ExprKind::kName);
  const std::string name = Next().text;
  if (name == "true" || name == "True") return Constant(Value::Bool(true));
  if (name == "false" || name == "False") return Constant(Value::Bool(false));
  if (name == "none" || name == "None") return Constant(Value::None());
  e->name = Intern(name);
  for (MacroDef* macro : open_macros_) {
    macro->uses_caller |= e->name == kNameCaller;
    macro->uses_kwargs |= e->name == kNameKwargs;
    macro->uses_varargs |= e->name == kNameVarargs;
  }
  return e;
}

ExprPtr ExpressionParser::ParsePrimary() {
  switch (Current().kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kInteger: {
      ExprPtr e = Constant(Value::Integer(Current().integer));
      Next();
      return e;
    }
    case TokenKind::kFloat: {
      ExprPtr e = Constant(Value::Float(Current().number));
      Next();
      return e;
    }
    case TokenKind::kString: {
      ExprPtr e = New(ExprKind::kConst);
      std::string text;
      while (Is(TokenKind::kString)) text += Next().text;
      e->constant = MakeString(budget_, std::move(text));
      return e;
    }
    default:
      break;
  }
  if (SkipOp("(")) {
    ExprPtr e = ParseTuple(true, {}, true);
    ExpectOp(")");
    return e;
  }
  if (IsOp("[")) {
    ExprPtr e = New(ExprKind::kList);
    Next();
    while (!IsOp("]")) {
      Adopt(*e, ParseExpression());
      if (!SkipOp(",")) break;
    }
    ExpectOp("]");
    return e;
  }
  if (IsOp("{")) {
    ExprPtr e = New(ExprKind::kDict);
    Next();
    while (!IsOp("}")) {
      Adopt(*e, ParseExpression());
      ExpectOp(":");
      Adopt(*e, ParseExpression());
      if (!SkipOp(",")) break;
    }
    ExpectOp("}");
    return e;
  }
  Fail("unexpected " + Describe(Current()));
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr e) {
  while (true) {
    if (IsOp(".")) {
      e = ParseDot(std::move(e));
    } else if (IsOp("[")) {
      e = ParseSubscript(std::move(e));
    } else if (IsOp("(")) {
      e = ParseCall(std::move(e));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::ParseDot(ExprPtr object) {
  Next();
  if (Is(TokenKind::kName)) {
    ExprPtr e = New(ExprKind::kAttribute);
    e->text = Next().text;
    Adopt(*e, std::move(object));
    return e;
  }
  if (!Is(TokenKind::kInteger)) Fail("expected a name or a number after '.', got " + Describe(Current()));
  ExprPtr e = New(ExprKind::kItem);
  ExprPtr key = Constant(Value::Integer(Current().integer));
  Next();
  Adopt(*e, std::move(object));
  Adopt(*e, std::move(key));
  return e;
}

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
  ExprPtr e = New(ExprKind::kItem);
  Next();
  if (IsOp("]")) Fail("expected an index between '[' and ']'");
  ExprPtr first = IsOp(":") ? nullptr : ParseExpression();
  if (IsOp(":")) {
    e->kind = ExprKind::kSlice;
    Adopt(*e, std::move(object));
    Adopt(*e, std::move(first));
    for (int part = 0; part < 2; ++part) {
      const bool present = SkipOp(":") && !IsOp(":") && !IsOp("]");
      Adopt(*e, present ? ParseExpression() : nullptr);
    }
  } else {
    Adopt(*e, std::move(object));
    if (IsOp(",")) {
      ExprPtr tuple = New(ExprKind::kTuple);
      Adopt(*tuple, std::move(first));
      while (SkipOp(",") && !IsOp("]")) Adopt(*tuple, ParseExpression());
      first = std::move(tuple);
    }
    Adopt(*e, std::move(first));
  }
  ExpectOp("]");
  return e;
}

ExprPtr ExpressionParser::ParseCall(ExprPtr callee) {
  ExprPtr e = New(ExprKind::kCall);
  Adopt(*e, std::move(callee));
  ParseArguments(*e);
  return e;
}

void ExpressionParser::ParseArguments(Expr& e) {
  e.arguments = std::make_unique<CallArguments>();
  CallArguments& args = *e.arguments;
  ExpectOp("(");
  bool first = true;
  while (!IsOp(")")) {
    if (!first) {
      ExpectOp(",");
      if (IsOp(")")) break;
    }
    first = false;
    if (IsOp("*") && !args.star && !args.star_star) {
      Next();
      args.star = ParseExpression();
      AdoptDepth(e, args.star);
    } else if (IsOp("**") && !args.star_star) {
      Next();
      args.star_star = ParseExpression();
      AdoptDepth(e, args.star_star);
    } else if (Is(TokenKind::kName) && Peek().IsOp("=") && !args.star_star) {
      std::string name = Next().text;
      Next();
      for (const auto& [other, value] : args.keyword)
        if (other == name) Fail("argument '" + name + "' is given twice");
      args.keyword.emplace_back(std::move(name), ParseExpression());
      AdoptDepth(e, args.keyword.back().second);
    } else {
      if (args.star || args.star_star || !args.keyword.empty())
        Fail("a positional argument follows a named one");
      args.positional.push_back(ParseExpression());
      AdoptDepth(e, args.positional.back());
    }
  }
  ExpectOp(")");
}

std::string ExpressionParser::DottedName() {
  std::string name = ExpectName();
  while (SkipOp(".")) name += "." + ExpectName();
  return name;
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr e, bool inline_first) {
  while (inline_first || IsOp("|")) {
    if (!inline_first) Next();
    inline_first = false;
    ExprPtr filter = New(ExprKind::kFilter);
    filter->text = DottedName();
    filter->filter = FindFilter(filter->text);
    Adopt(*filter, std::move(e));
    if (IsOp("(")) ParseArguments(*filter);
    e = std::move(filter);
  }
  return e;
}

ExprPtr ExpressionParser::ParseFiltersAndTests(ExprPtr e) {
  while (true) {
    if (IsOp("|")) {
      e = ParseFilters(std::move(e), false);
    } else if (IsName("is")) {
      e = ParseTest(std::move(e));
    } else if (IsOp("(")) {
      e = ParseCall(std::move(e));
    } else {
      return e;
    }
  }
}

bool ExpressionParser::StartsTestArgument() const {
  switch (Current().kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kOperator:
      return IsOp("[") || IsOp("{");
    case TokenKind::kName:
      return !IsName("else") && !IsName("or") && !IsName("and");
    default:
      return false;
  }
}

ExprPtr ExpressionParser::ParseTest(ExprPtr e) {
  ExprPtr test = New(ExprKind::kTest);
  Next();
  const bool negated = SkipName("not");
  test->text = DottedName();
  test->test = FindTest(test->text);
  Adopt(*test, std::move(e));
  if (IsOp("(")) {
    ParseArguments(*test);
  } else if (StartsTestArgument()) {
    if (IsName("is")) Fail("two tests cannot be chained with 'is'");
    test->arguments = std::make_unique<CallArguments>();
    test->arguments->positional.push_back(ParsePostfix(ParsePrimary()));
    AdoptDepth(*test, test->arguments->positional.back());
  }
  if (!negated) return test;
  ExprPtr negation = New(ExprKind::kNot);
  Adopt(*negation, std::move(test));
  return negation;
}

}  // namespace celer::jinja
