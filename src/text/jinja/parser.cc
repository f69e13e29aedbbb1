#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace celer::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Tokenize(source)), budget_(Limits{}) {
    for (const char* name : {"loop", "caller", "kwargs", "varargs"}) Intern(name);
  }

  std::shared_ptr<const Template> Run() {
    auto result = std::make_shared<Template>();
    result->body = ParseBody({});
    result->names = std::move(names_);
    return result;
  }

 private:
  // Bounds both the recursion of the parser and, by way of Expr::depth, that of everything that walks the tree.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > Limits::kSourceDepth) parser_.Fail("the template is nested too deeply");
    }
    ~Nested() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  const Token& Current() const { return tokens_[at_]; }
  const Token& Look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
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
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kBlockEnd: return "'%}'";
      case TokenKind::kVarEnd: return "'}}'";
      case TokenKind::kString: return "a string";
      default: return "'" + token.text + "'";
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

  // --- Statements ---

  Body ParseBody(Names end_tags) {
    Nested nested(*this);
    Body body;
    while (!Is(TokenKind::kEnd)) {
      const int line = Current().line;
      if (Is(TokenKind::kData)) {
        auto s = NewStmt(StmtKind::kData, line);
        s->text = Next().text;
        body.push_back(std::move(s));
      } else if (Is(TokenKind::kVarBegin)) {
        Next();
        auto s = NewStmt(StmtKind::kOutput, line);
        s->value = ParseTuple();
        Expect(TokenKind::kVarEnd, "'}}'");
        body.push_back(std::move(s));
      } else {
        Expect(TokenKind::kBlockBegin, "a tag");
        for (const std::string_view end : end_tags)
          if (IsName(end)) return body;
        ParseStatement(body);
        Expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (end_tags.size() != 0) Fail("the template ends before '{% " + std::string(end_tags.begin()[end_tags.size() - 1]) + " %}'");
    return body;
  }

  // The rest of an opening tag, then a body up to one of the end tags, whose name is left as the current token.
  Body ParseBlock(Names end_tags) {
    SkipOp(":");
    Expect(TokenKind::kBlockEnd, "'%}'");
    return ParseBody(end_tags);
  }
  Body ParseBlockTo(std::string_view end_tag) {
    Body body = ParseBlock({end_tag});
    Next();
    return body;
  }

  static std::unique_ptr<Stmt> NewStmt(StmtKind kind, int line) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    return s;
  }

  void ParseStatement(Body& body) {
    Nested nested(*this);
    if (!Is(TokenKind::kName)) Fail("expected the name of a tag, got " + Describe(Current()));
    const int line = Current().line;
    const std::string tag = Current().text;
    Next();
    if (tag == "if") {
      body.push_back(ParseIf(line));
    } else if (tag == "for") {
      body.push_back(ParseFor(line));
    } else if (tag == "set") {
      body.push_back(ParseSet(line));
    } else if (tag == "macro") {
      body.push_back(ParseMacro(line));
    } else if (tag == "call") {
      body.push_back(ParseCallBlock(line));
    } else if (tag == "filter") {
      auto s = NewStmt(StmtKind::kFilterBlock, line);
      s->value = ParseFilters(nullptr, true);
      s->body = ParseBlockTo("endfilter");
      body.push_back(std::move(s));
    } else if (tag == "with") {
      body.push_back(ParseWith(line));
    } else if (tag == "print") {
      while (!Is(TokenKind::kBlockEnd)) {
        auto s = NewStmt(StmtKind::kOutput, line);
        s->value = ParseExpression();
        body.push_back(std::move(s));
        if (!Is(TokenKind::kBlockEnd)) ExpectOp(",");
      }
    } else if (tag == "generation") {
      const int loops = std::exchange(loop_depth_, 0);
      auto s = NewStmt(StmtKind::kScope, line);
      s->body = ParseBlockTo("endgeneration");
      loop_depth_ = loops;
      body.push_back(std::move(s));
    } else if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) Fail("'" + tag + "' stands outside of a loop");
      body.push_back(NewStmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line));
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends" || tag == "block" ||
               tag == "autoescape") {
      Fail("the tag '" + tag + "' is not supported in a chat template");
    } else {
      Fail("unknown tag '" + tag + "'");
    }
  }

  std::unique_ptr<Stmt> ParseIf(int line) {
    auto s = NewStmt(StmtKind::kIf, line);
    while (true) {
      ExprPtr test = ParseTuple(false);
      Body body = ParseBlock({"elif", "else", "endif"});
      s->branches.emplace_back(std::move(test), std::move(body));
      const std::string tag = Next().text;
      if (tag == "elif") continue;
      if (tag == "else") s->otherwise = ParseBlockTo("endif");
      return s;
    }
  }

  std::unique_ptr<Stmt> ParseFor(int line) {
    auto s = NewStmt(StmtKind::kFor, line);
    s->target = ParseTarget(false, "in");
    CheckLoopTarget(*s->target);
    if (!SkipName("in")) Fail("expected 'in', got " + Describe(Current()));
    s->value = ParseTuple(false, "recursive");
    if (SkipName("if")) s->filter = ParseExpression();
    s->recursive = SkipName("recursive");
    ++loop_depth_;
    s->body = ParseBlock({"endfor", "else"});
    --loop_depth_;
    if (Next().text == "else") s->otherwise = ParseBlockTo("endfor");
    return s;
  }

  void CheckLoopTarget(const Expr& target) const {
    if (target.name == kNameLoop) Fail("'loop' cannot be the variable of a loop");
    for (const ExprPtr& child : target.children) CheckLoopTarget(*child);
  }

  std::unique_ptr<Stmt> ParseSet(int line) {
    auto s = NewStmt(StmtKind::kSet, line);
    s->target = ParseTarget(true);
    if (SkipOp("=")) {
      s->value = ParseTuple();
      return s;
    }
    s->kind = StmtKind::kSetBlock;
    s->value = ParseFilters(nullptr, false);
    s->body = ParseBlockTo("endset");
    return s;
  }

  void ParseSignature(MacroDef& macro) {
    ExpectOp("(");
    while (!IsOp(")")) {
      if (!macro.parameters.empty()) ExpectOp(",");
      std::string name = ExpectName();
      if (SkipOp("=")) {
        macro.defaults.push_back(ParseExpression());
      } else if (!macro.defaults.empty()) {
        Fail("parameter '" + name + "' without a default follows one with a default");
      }
      const int id = Intern(name);
      macro.parameters.emplace_back(id, std::move(name));
    }
    ExpectOp(")");
  }

  void ParseMacroBody(MacroDef& macro, std::string_view end_tag) {
    open_macros_.push_back(&macro);
    const int loops = std::exchange(loop_depth_, 0);
    macro.body = ParseBlockTo(end_tag);
    loop_depth_ = loops;
    open_macros_.pop_back();
    for (const auto& [id, name] : macro.parameters) {  // a parameter of that name is only a parameter
      if (id == kNameKwargs) macro.uses_kwargs = false;
      if (id == kNameVarargs) macro.uses_varargs = false;
    }
  }

  std::unique_ptr<Stmt> ParseMacro(int line) {
    auto s = NewStmt(StmtKind::kMacro, line);
    s->macro = std::make_unique<MacroDef>();
    s->macro->name = ExpectName();
    s->macro->name_id = Intern(s->macro->name);
    ParseSignature(*s->macro);
    ParseMacroBody(*s->macro, "endmacro");
    return s;
  }

  std::unique_ptr<Stmt> ParseCallBlock(int line) {
    auto s = NewStmt(StmtKind::kCallBlock, line);
    s->macro = std::make_unique<MacroDef>();
    s->macro->name = "caller";
    if (IsOp("(")) ParseSignature(*s->macro);
    s->value = ParseExpression();
    if (s->value->kind != ExprKind::kCall) Fail("a call block needs a call such as '{% call name() %}'");
    ParseMacroBody(*s->macro, "endcall");
    return s;
  }

  std::unique_ptr<Stmt> ParseWith(int line) {
    auto s = NewStmt(StmtKind::kWith, line);
    while (!Is(TokenKind::kBlockEnd)) {
      if (!s->bindings.empty()) ExpectOp(",");
      ExprPtr target = ParseTarget(false);
      ExpectOp("=");
      s->bindings.emplace_back(std::move(target), ParseExpression());
    }
    s->body = ParseBlockTo("endwith");
    return s;
  }

  // --- Assignment targets: names, namespace attributes, and tuples of them ---

  ExprPtr ParseTarget(bool with_namespace, std::string_view end_name = {}) {
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

  ExprPtr ParseTargetItem(bool with_namespace) {
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

  // --- Expressions, from the loosest binding to the tightest ---

  bool AtTupleEnd(std::string_view end_name) const {
    return Is(TokenKind::kVarEnd) || Is(TokenKind::kBlockEnd) || IsOp(")") || (!end_name.empty() && IsName(end_name));
  }

  ExprPtr ParseTuple(bool with_cond = true, std::string_view end_name = {}, bool in_parentheses = false) {
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

  ExprPtr ParseExpression() {
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

  ExprPtr ParseOr() { return ParseLogic(ExprKind::kOr, "or", &Parser::ParseAnd); }
  ExprPtr ParseAnd() { return ParseLogic(ExprKind::kAnd, "and", &Parser::ParseNot); }

  ExprPtr ParseLogic(ExprKind kind, std::string_view word, ExprPtr (Parser::*operand)()) {
    ExprPtr first = (this->*operand)();
    if (!IsName(word)) return first;
    ExprPtr e = New(kind);
    Adopt(*e, std::move(first));
    while (SkipName(word)) Adopt(*e, (this->*operand)());
    return e;
  }

  ExprPtr ParseNot() {
    if (!IsName("not")) return ParseCompare();
    Nested nested(*this);
    ExprPtr e = New(ExprKind::kNot);
    Next();
    Adopt(*e, ParseNot());
    return e;
  }

  std::optional<Op> CompareOp() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                               {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
    for (const auto& [text, op] : kOps)
      if (SkipOp(text)) return op;
    if (SkipName("in")) return Op::kIn;
    if (IsName("not") && Look().IsName("in")) {
      Next();
      Next();
      return Op::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr ParseCompare() {
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

  using MathOps = std::initializer_list<std::pair<std::string_view, Op>>;

  // Operators of one rank, joined in one node from left to right (also **: Jinja reads 2**3**2 as (2**3)**2).
  ExprPtr ParseMath(MathOps ops, ExprPtr (Parser::*operand)()) {
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

  ExprPtr ParseSum() { return ParseMath({{"+", Op::kAdd}, {"-", Op::kSub}}, &Parser::ParseConcat); }

  ExprPtr ParseConcat() {
    ExprPtr first = ParseProduct();
    if (!IsOp("~")) return first;
    ExprPtr e = New(ExprKind::kConcat);
    Adopt(*e, std::move(first));
    while (SkipOp("~")) Adopt(*e, ParseProduct());
    return e;
  }

  ExprPtr ParseProduct() {
    return ParseMath({{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}}, &Parser::ParsePower);
  }
  ExprPtr ParsePower() { return ParseMath({{"**", Op::kPow}}, &Parser::ParseFilteredUnary); }
  ExprPtr ParseFilteredUnary() { return ParseUnary(true); }

  ExprPtr ParseUnary(bool with_filters) {
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

  ExprPtr Constant(Value value) const {
    ExprPtr e = New(ExprKind::kConst);
    e->constant = std::move(value);
    return e;
  }

  ExprPtr ParseName() {
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

  ExprPtr ParsePrimary() {
    switch (Current().kind) {
      case TokenKind::kName: return ParseName();
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
      default: break;
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

  ExprPtr ParsePostfix(ExprPtr e) {
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

  ExprPtr ParseDot(ExprPtr object) {
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

  ExprPtr ParseSubscript(ExprPtr object) {
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

  ExprPtr ParseCall(ExprPtr callee) {
    ExprPtr e = New(ExprKind::kCall);
    Adopt(*e, std::move(callee));
    ParseArguments(*e);
    return e;
  }

  void ParseArguments(Expr& e) {
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
      } else if (Is(TokenKind::kName) && Look().IsOp("=") && !args.star_star) {
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

  std::string DottedName() {
    std::string name = ExpectName();
    while (SkipOp(".")) name += "." + ExpectName();
    return name;
  }

  // `|name(...)` as often as it stands there; `inline_first`: the first one has no bar.
  ExprPtr ParseFilters(ExprPtr e, bool inline_first) {
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

  ExprPtr ParseFiltersAndTests(ExprPtr e) {
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

  bool StartsTestArgument() const {
    switch (Current().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      case TokenKind::kOperator: return IsOp("[") || IsOp("{");
      case TokenKind::kName: return !IsName("else") && !IsName("or") && !IsName("and");
      default: return false;
    }
  }

  ExprPtr ParseTest(ExprPtr e) {
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

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  std::vector<MacroDef*> open_macros_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> ids_;
  Budget budget_;
};

}  // namespace

std::shared_ptr<const Template> Parse(std::string_view source) {
  if (static_cast<int64_t>(source.size()) > Limits::kSourceBytes)
    throw TemplateError("the template is larger than " + std::to_string(Limits::kSourceBytes) + " bytes");
  auto result = Parser(source).Run();
  CheckNames(*result);
  return result;
}

}  // namespace celer::jinja
