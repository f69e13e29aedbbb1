// Runs a template over its variables. One object renders once; it owns every value that the template can
// change.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/value.h"

namespace celer::jinja {

struct Scope {
  explicit Scope(std::shared_ptr<Scope> up) : parent(std::move(up)) {}
  Value* Find(int name) {
    for (auto& [id, value] : variables)
      if (id == name) return &value;
    return nullptr;
  }
  void Set(int name, Value value) {
    if (Value* old = Find(name)) {
      *old = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;
};

class Interpreter {
 public:
  // `now`: what strftime_now() shows, as local time.
  Interpreter(const Template& source, const Limits& limits, std::time_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void SetVariable(const std::string& name, Value value);
  std::string Render();  // throws TemplateError

  // For the builtins.
  Budget& budget() { return budget_; }
  std::time_t now() const { return now_; }
  Value Attribute(const Value& object, const std::string& name);
  bool HasAttribute(const Value& object, const std::string& name);  // not counting the keys of a dict
  Value Item(const Value& object, const Value& key);
  Value AttributePath(const Value& object, const Value& path);  // "a.b.0", as the attribute= of filters
  Value Call(const Value& callee, const Args& args);
  std::vector<Value> Items(
      const Value& iterable);  // what a loop over it would see; reads an iterator to its end
  int64_t Length(const Value& value);
  Value NewNamespace();
  Value Text(std::string text, bool markup = false) { return MakeString(budget_, std::move(text), markup); }
  std::string Str(const Value& value);
  std::string Repr(const Value& value);
  bool autoescape() const { return autoescape_; }  // whether filters give and respect markup
  std::string Escaped(const Value& value);         // as HTML, unless it is markup already

  // Operators (operators.cc).
  Value Math(Op op, const Value& a, const Value& b);
  Value Negate(const Value& a);
  bool Contains(const Value& container, const Value& item);
  Value Slice(const Value& object, const Value& start, const Value& stop, const Value& step);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct LoopObject;
  struct MacroObject;
  class Nested;

  Value Eval(const Expr& e);
  Value EvalNode(const Expr& e);
  Value EvalMath(const Expr& e);
  Value EvalCompare(const Expr& e);
  Value EvalConcat(const Expr& e);
  Value EvalFilter(const Expr& e);
  Value EvalCall(const Expr& e, const Value* caller);
  Args EvalArguments(const CallArguments* arguments);
  Value Lookup(int name);

  Flow Exec(const Body& body);
  Flow ExecStmt(const Stmt& s);
  Flow ExecFor(const Stmt& s);
  Flow ExecAutoescape(const Stmt& s);
  Value FilterBlockText(const Expr& filters, const Value& text, std::shared_ptr<Scope> scope);
  std::string RenderBlock(const Stmt& block, std::shared_ptr<Scope> around);
  static Value CallBlock(Interpreter& in, const Value& name, const Args& args);
  Value SelfReference();
  // The loop over one iterable; recursive loops come back here.
  Flow RunLoop(const Stmt& s, const Value& iterable, std::shared_ptr<Scope> outer, int depth0);
  std::optional<Value> PullItem(LoopObject& loop);
  bool PeekItem(LoopObject& loop);
  int64_t LoopLength(LoopObject& loop);
  Value LoopAttribute(const Value& loop, const std::string& name);
  static Value LoopCycle(Interpreter& in, const Value& self, const Args& args);
  static Value LoopChanged(Interpreter& in, const Value& self, const Args& args);
  std::string Capture(const Body& body, std::shared_ptr<Scope> scope);
  void CheckTarget(const Expr& target);
  void Assign(const Expr& target, Value value);
  void Write(std::string_view text);
  void WriteRaw(const Value& value);  // of a block tag: what is not text is an error
  bool EscapesAt(Autoescape place) const {
    return place == Autoescape::kOn || (place == Autoescape::kVolatile && autoescape_);
  }
  Value NewMacro(const MacroDef& definition);
  Value CallMacro(const Value& macro, const Args& args);

  const Template& source_;
  Budget budget_;
  const std::time_t now_;
  std::vector<std::optional<Value>> context_;  // by name
  std::shared_ptr<Scope> scope_;
  const std::shared_ptr<Scope> root_;  // what a block sees
  bool autoescape_ = false;
  std::string out_;
  const Value* block_text_ = nullptr;  // what a filter without an operand applies to
  int depth_ = 0;
  // Emptied at the end, so that a namespace that holds itself, or a macro that its own scope holds, is freed.
  std::vector<std::shared_ptr<Object>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_;
};

}  // namespace celer::jinja
