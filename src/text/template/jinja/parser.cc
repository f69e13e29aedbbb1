#include "text/template/jinja/parser.h"

#include <initializer_list>

#include "text/template/jinja/expression_parser.h"

namespace celer::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  std::shared_ptr<const Template> Run() {
    auto result = std::make_shared<Template>();
    result->body = ParseBody({});
    result->names = std::move(names_);
    result->blocks = std::move(blocks_);
    for (size_t i = 0; i < tokens_.size(); ++i)
      if (tokens_[i].kind == TokenKind::kString ||
          (tokens_[i].kind == TokenKind::kName && i > 0 && tokens_[i - 1].IsOp(".")))
        result->fields.insert(tokens_[i].text);
    return result;
  }

 private:
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
    if (end_tags.size() != 0)
      Fail("the template ends before '{% " + std::string(end_tags.begin()[end_tags.size() - 1]) + " %}'");
    return body;
  }

  // The rest of an opening tag, then a body up to one of the end tags, whose name is left as the current
  // token.
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

  std::unique_ptr<Stmt> NewStmt(StmtKind kind, int line) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    s->autoescape = autoescape_;
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
    } else if (tag == "block") {
      body.push_back(ParseNamedBlock(line));
    } else if (tag == "autoescape") {
      body.push_back(ParseAutoescape(line));
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
      body.push_back(ParseLoad(line, tag));
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

  // Nothing inherits from a chat template, so a block is rendered where it stands.
  std::unique_ptr<Stmt> ParseNamedBlock(int line) {
    auto s = NewStmt(StmtKind::kBlock, line);
    s->text = ExpectName();
    s->recursive = SkipName("scoped");  // the words stand in any order
    if (SkipName("required")) {
      s->kind = StmtKind::kLoad;  // another template must fill it
      s->recursive |= SkipName("scoped");
    }
    if (IsOp("-")) Fail("the name of a block must not have a '-'");
    if (!blocks_.emplace(s->text, s.get()).second) Fail("the block '" + s->text + "' is defined twice");
    const int loops = std::exchange(loop_depth_, 0);
    const Autoescape around = std::exchange(autoescape_, Autoescape::kOff);  // as Jinja compiles a block
    s->body = ParseBlockTo("endblock");
    SkipName(s->text);
    autoescape_ = around;
    loop_depth_ = loops;
    return s;
  }

  std::unique_ptr<Stmt> ParseAutoescape(int line) {
    auto s = NewStmt(StmtKind::kAutoescape, line);
    s->value = ParseExpression();
    const Autoescape around = autoescape_;
    if (s->value->kind != ExprKind::kConst) {
      autoescape_ = Autoescape::kVolatile;
    } else if (around != Autoescape::kVolatile) {
      autoescape_ = Truthy(s->value->constant) ? Autoescape::kOn : Autoescape::kOff;
    }
    s->body = ParseBlockTo("endautoescape");
    autoescape_ = around;
    return s;
  }

  // Right or wrong is settled here; there is nothing to load from, so it is an error once it is reached.
  std::unique_ptr<Stmt> ParseLoad(int line, const std::string& tag) {
    auto s = NewStmt(StmtKind::kLoad, line);
    s->text = tag;
    s->value = ParseExpression();
    if (tag == "include" && IsName("ignore") && Peek().IsName("missing")) {
      Next();
      Next();
    }
    if (tag == "import") {
      if (!SkipName("as")) Fail("expected 'as', got " + Describe(Current()));
      ExpectName();
    }
    if (tag == "from") {
      if (!SkipName("import")) Fail("expected 'import', got " + Describe(Current()));
      do {
        if (ExpectName().starts_with('_')) Fail("names with an underscore at their start cannot be imported");
        if (SkipName("as")) ExpectName();
      } while (SkipOp(",") && Is(TokenKind::kName) && !Peek().IsName("context"));
    }
    if (tag != "extends" && (IsName("with") || IsName("without")) && Peek().IsName("context")) {
      Next();
      Next();
    }
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

  int loop_depth_ = 0;
  std::unordered_map<std::string, const Stmt*> blocks_;
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
