#include "text/template/jinja/interpreter.h"

#include <algorithm>

#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter_objects.h"

namespace celer::jinja {

Interpreter::Interpreter(const Template& source, const Limits& limits, std::time_t now)
    : source_(source),
      budget_(limits),
      now_(now),
      context_(source.names.size()),
      scope_(std::make_shared<Scope>(nullptr)),
      root_(scope_) {
  for (size_t i = 0; i < source.names.size(); ++i) {
    if (FilterFn global = FindGlobal(source.names[i]))
      context_[i] = MakeFunction(budget_, source.names[i], global, Value::None());
    if (source.names[i] == "self") root_->Set(static_cast<int>(i), SelfReference());
  }
}

Interpreter::~Interpreter() {
  for (const auto& object : namespaces_) static_cast<Namespace&>(*object).attributes.entries.clear();
  for (const auto& scope : captured_) scope->variables.clear();
}

void Interpreter::SetVariable(const std::string& name, Value value) {
  const auto at = std::ranges::find(source_.names, name);
  if (at != source_.names.end()) context_[at - source_.names.begin()] = std::move(value);
}

std::string Interpreter::Render() {
  Exec(source_.body);
  return std::move(out_);
}

Value Interpreter::NewNamespace() {
  budget_.Charge(8);
  auto object = std::make_shared<Namespace>();
  namespaces_.push_back(object);
  return {Kind::kNamespace, std::move(object)};
}

std::string Interpreter::Str(const Value& value) {
  return ToStr(value, budget_);
}
std::string Interpreter::Repr(const Value& value) {
  return ToRepr(value, budget_);
}

std::string Interpreter::Escaped(const Value& value) {
  if (value.Is(Kind::kString) && value.string().markup) return value.text();
  return EscapeHtml(Str(value), budget_);
}

void Interpreter::WriteRaw(const Value& value) {
  if (!value.Is(Kind::kString))
    throw TemplateError("a call or filter block must give a string, not " + TypeName(value));
  Write(value.text());
}

void Interpreter::Write(std::string_view text) {
  budget_.Charge(static_cast<int64_t>(text.size()) / 16);
  budget_.CheckString(static_cast<int64_t>(out_.size() + text.size()));
  out_.append(text);
}

std::string Interpreter::Capture(const Body& body, std::shared_ptr<Scope> scope) {
  std::string saved_out = std::exchange(out_, {});
  std::shared_ptr<Scope> saved_scope = std::exchange(scope_, std::move(scope));
  Exec(body);
  scope_ = std::move(saved_scope);
  return std::exchange(out_, std::move(saved_out));
}

// --- Statements ---

Interpreter::Flow Interpreter::Exec(const Body& body) {
  Nested nested(*this);
  for (const auto& s : body) {
    budget_.Charge(1);
    try {
      if (const Flow flow = ExecStmt(*s); flow != Flow::kNext) return flow;
    } catch (TemplateError& error) {
      if (error.line == 0) error.line = s->line;
      throw;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecStmt(const Stmt& s) {
  switch (s.kind) {
    case StmtKind::kData:
      Write(s.text);
      break;
    case StmtKind::kOutput: {
      const Value value = Eval(*s.value);
      if (EscapesAt(s.autoescape)) {
        Write(Escaped(value));
      } else if (value.Is(Kind::kString)) {
        Write(value.text());
      } else {
        Write(Str(value));
      }
      break;
    }
    case StmtKind::kIf: {
      for (const auto& [test, body] : s.branches)
        if (Truthy(Eval(*test))) return Exec(body);
      return Exec(s.otherwise);
    }
    case StmtKind::kFor:
      return ExecFor(s);
    case StmtKind::kSet: {
      CheckTarget(*s.target);
      Assign(*s.target, Eval(*s.value));
      break;
    }
    case StmtKind::kSetBlock: {
      auto inner = std::make_shared<Scope>(scope_);
      Value text = Text(Capture(s.body, inner), autoescape_);
      if (s.value) text = FilterBlockText(*s.value, text, inner);
      if (autoescape_ && !(text.Is(Kind::kString) && text.string().markup)) text = Text(Str(text), true);
      CheckTarget(*s.target);
      Assign(*s.target, std::move(text));
      break;
    }
    case StmtKind::kMacro:
      scope_->Set(s.macro->name_id, NewMacro(*s.macro));
      break;
    case StmtKind::kCallBlock: {
      const Value caller = NewMacro(*s.macro);
      WriteRaw(EvalCall(*s.value, &caller));
      break;
    }
    case StmtKind::kFilterBlock: {
      auto inner = std::make_shared<Scope>(scope_);
      const Value text = Text(Capture(s.body, inner));
      WriteRaw(FilterBlockText(*s.value, text, inner));
      break;
    }
    case StmtKind::kWith: {
      auto inner = std::make_shared<Scope>(scope_);
      for (const auto& [target, expression] : s.bindings) {
        Value value = Eval(*expression);  // sees the outer scope, not its neighbours
        auto outer = std::exchange(scope_, inner);
        Assign(*target, std::move(value));
        scope_ = std::move(outer);
      }
      auto outer = std::exchange(scope_, inner);
      const Flow flow = Exec(s.body);
      scope_ = std::move(outer);
      return flow;
    }
    case StmtKind::kScope:
      Write(Capture(s.body, std::make_shared<Scope>(scope_)));
      break;
    case StmtKind::kBlock:
      Write(RenderBlock(s, s.recursive ? scope_ : root_));
      break;
    case StmtKind::kAutoescape:
      return ExecAutoescape(s);
    case StmtKind::kLoad:
      throw TemplateError("the tag '" + s.text + "' needs another template, and a chat template has none");
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecAutoescape(const Stmt& s) {
  auto outer = std::exchange(scope_, std::make_shared<Scope>(scope_));
  const bool around = std::exchange(autoescape_, Truthy(Eval(*s.value)));
  const Flow flow = Exec(s.body);
  scope_ = std::move(outer);
  if (flow == Flow::kNext) autoescape_ = around;  // Jinja's break and continue skip this too
  return flow;
}

Value Interpreter::FilterBlockText(const Expr& filters, const Value& text, std::shared_ptr<Scope> scope) {
  const Value* saved = std::exchange(block_text_, &text);
  auto outer = std::exchange(scope_, std::move(scope));
  Value filtered = Eval(filters);
  scope_ = std::move(outer);
  block_text_ = saved;
  return filtered;
}

std::string Interpreter::RenderBlock(const Stmt& block, std::shared_ptr<Scope> around) {
  Nested nested(*this);
  return Capture(block.body, std::make_shared<Scope>(std::move(around)));
}

Value Interpreter::CallBlock(Interpreter& in, const Value& name, const Args& args) {
  Bind("a block", args, {}, 0);
  const Stmt& block = *in.source_.blocks.at(name.text());
  if (block.kind == StmtKind::kLoad) throw TemplateError("the block '" + name.text() + "' is not filled");
  return in.Text(in.RenderBlock(block, in.root_), in.autoescape_);
}

// `self`: the blocks of the template, as functions.
Value Interpreter::SelfReference() {
  Value self = NewNamespace();
  for (const auto& [name, block] : source_.blocks)
    self.name_space().attributes.Set(Text(name), MakeFunction(budget_, name, &CallBlock, Text(name)),
                                     budget_);
  return self;
}

void Interpreter::CheckTarget(const Expr& target) {
  if (target.kind == ExprKind::kNsRef && !Lookup(target.name).Is(Kind::kNamespace))
    throw TemplateError("cannot set '" + source_.names[target.name] + "." + target.text +
                        "': only attributes of a namespace() can be set");
  for (const ExprPtr& child : target.children) CheckTarget(*child);
}

void Interpreter::Assign(const Expr& target, Value value) {
  budget_.Charge(1);
  if (target.kind == ExprKind::kName) {
    budget_.Charge(static_cast<int64_t>(scope_->variables.size()) / 8);
    scope_->Set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExprKind::kNsRef) {
    if (target.text.starts_with('_'))
      throw TemplateError("a namespace cannot have the attribute '" + target.text +
                          "': it starts with an underscore");
    const Value holder = Lookup(target.name);
    holder.name_space().attributes.Set(Text(target.text), std::move(value), budget_);
    return;
  }
  const std::vector<Value> items = Items(value);
  if (items.size() != target.children.size())
    throw TemplateError("cannot unpack " + std::to_string(items.size()) + " values into " +
                        std::to_string(target.children.size()) + " names");
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.children[i], items[i]);
}

// --- Expressions ---

Value Interpreter::Eval(const Expr& e) {
  if (e.kind == ExprKind::kConst) return e.constant;
  Nested nested(*this);
  budget_.Charge(1);
  try {
    return EvalNode(e);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = e.line;
    throw;
  }
}

Value Interpreter::Lookup(int name) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    budget_.Charge(static_cast<int64_t>(scope->variables.size()) / 8);  // the search is linear
    if (const Value* value = scope->Find(name)) return *value;
  }
  const auto index = static_cast<size_t>(name);
  if (context_[index]) return *context_[index];
  return Value::Undefined("'" + source_.names[index] + "' is undefined");
}

Value Interpreter::EvalNode(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kConst:
      return e.constant;
    case ExprKind::kName:
    case ExprKind::kNsRef:
      return Lookup(e.name);
    case ExprKind::kTuple:
    case ExprKind::kList: {
      std::vector<Value> items;
      items.reserve(e.children.size());
      for (const ExprPtr& child : e.children) items.push_back(Eval(*child));
      return MakeSequence(budget_, e.kind == ExprKind::kList ? Kind::kList : Kind::kTuple, std::move(items));
    }
    case ExprKind::kDict: {
      auto dict = NewDict();
      for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
        Value key = Eval(*e.children[i]);
        dict->Set(std::move(key), Eval(*e.children[i + 1]), budget_);
      }
      return FinishDict(budget_, std::move(dict));
    }
    case ExprKind::kNegate:
      return Negate(Eval(*e.children[0]));
    case ExprKind::kPlus: {
      const Value value = Eval(*e.children[0]);
      return value.Is(Kind::kFloat) ? value : Math(Op::kAdd, Value::Integer(0), value);
    }
    case ExprKind::kNot:
      return Value::Bool(!Truthy(Eval(*e.children[0])));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value;
      for (const ExprPtr& child : e.children) {
        value = Eval(*child);
        if (Truthy(value) == (e.kind == ExprKind::kOr)) return value;
      }
      return value;
    }
    case ExprKind::kMath:
      return EvalMath(e);
    case ExprKind::kCompare:
      return EvalCompare(e);
    case ExprKind::kConcat:
      return EvalConcat(e);
    case ExprKind::kCond:
      if (Truthy(Eval(*e.children[0]))) return Eval(*e.children[1]);
      if (e.children[2]) return Eval(*e.children[2]);
      return Value::Undefined("the inline if is false and has no else");
    case ExprKind::kAttribute:
      return Attribute(Eval(*e.children[0]), e.text);
    case ExprKind::kItem: {
      const Value object = Eval(*e.children[0]);
      return Item(object, Eval(*e.children[1]));
    }
    case ExprKind::kSlice: {
      Value parts[4];
      for (size_t i = 0; i < 4; ++i)
        if (e.children[i]) parts[i] = Eval(*e.children[i]);
      return Slice(parts[0], parts[1], parts[2], parts[3]);
    }
    case ExprKind::kCall:
      return EvalCall(e, nullptr);
    case ExprKind::kFilter:
      return EvalFilter(e);
    case ExprKind::kTest: {
      const Value input = Eval(*e.children[0]);
      if (e.test == nullptr) throw TemplateError("there is no test '" + e.text + "'");
      return Value::Bool(e.test(*this, input, EvalArguments(e.arguments.get())));
    }
  }
  return {};
}

Value Interpreter::EvalMath(const Expr& e) {
  Value value = Eval(*e.children[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) value = Math(e.ops[i], value, Eval(*e.children[i + 1]));
  return value;
}

Value Interpreter::EvalCompare(const Expr& e) {
  Value left = Eval(*e.children[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = Eval(*e.children[i + 1]);
    bool holds = false;
    switch (e.ops[i]) {
      case Op::kEq:
        holds = Equal(left, right, budget_);
        break;
      case Op::kNe:
        holds = !Equal(left, right, budget_);
        break;
      case Op::kIn:
        holds = Contains(right, left);
        break;
      case Op::kNotIn:
        holds = !Contains(right, left);
        break;
      case Op::kLt:
        holds = Compare(left, right, "<", budget_) == -1;
        break;
      case Op::kGt:
        holds = Compare(left, right, ">", budget_) == 1;
        break;
      case Op::kLe: {
        const int order = Compare(left, right, "<=", budget_);
        holds = order == -1 || order == 0;
        break;
      }
      case Op::kGe: {
        const int order = Compare(left, right, ">=", budget_);
        holds = order == 1 || order == 0;
        break;
      }
      default:
        break;
    }
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvalFilter(const Expr& e) {
  const Value input = e.children[0]             ? Eval(*e.children[0])
                      : EscapesAt(e.autoescape) ? Text(block_text_->text(), true)
                                                : *block_text_;
  if (e.filter == nullptr)
    throw TemplateError(e.text == "random" ? "the filter 'random' is not supported: a prompt must not depend "
                                             "on chance"
                                           : "there is no filter '" + e.text + "'");
  return e.filter(*this, input, EvalArguments(e.arguments.get()));
}

Value Interpreter::EvalConcat(const Expr& e) {
  std::vector<Value> values;
  bool markup = false;  // known to escape, and one of the pieces is markup: the others are escaped
  for (const ExprPtr& child : e.children) {
    values.push_back(Eval(*child));
    markup |=
        e.autoescape == Autoescape::kOn && values.back().Is(Kind::kString) && values.back().string().markup;
  }
  std::string text;
  for (const Value& value : values) {
    const std::string& piece = markup ? Escaped(value) : value.Is(Kind::kString) ? value.text() : Str(value);
    budget_.CheckString(static_cast<int64_t>(text.size() + piece.size()));
    text += piece;
  }
  return Text(std::move(text), markup);
}

Args Interpreter::EvalArguments(const CallArguments* arguments) {
  Args args;
  if (arguments == nullptr) return args;
  for (const ExprPtr& argument : arguments->positional) args.positional.push_back(Eval(*argument));
  for (const auto& [name, argument] : arguments->keyword) args.keyword.emplace_back(name, Eval(*argument));
  if (arguments->star) {
    std::vector<Value> items = Items(Eval(*arguments->star));
    budget_.Charge(static_cast<int64_t>(items.size()));
    for (Value& item : items) args.positional.push_back(std::move(item));
  }
  if (arguments->star_star) {
    const Value more = Eval(*arguments->star_star);
    if (!more.Is(Kind::kDict))
      throw TemplateError("the argument after ** must be a dict, not " + TypeName(more));
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.Is(Kind::kString)) throw TemplateError("the keys of a ** argument must be strings");
      for (const auto& [name, other] : args.keyword)
        if (name == key.text()) throw TemplateError("argument '" + name + "' is given twice");
      budget_.Charge(1 + static_cast<int64_t>(args.keyword.size()));
      args.keyword.emplace_back(key.text(), value);
    }
  }
  return args;
}

Value Interpreter::EvalCall(const Expr& e, const Value* caller) {
  const Value callee = Eval(*e.children[0]);
  Args args = EvalArguments(e.arguments.get());
  if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
  return Call(callee, args);
}

}  // namespace celer::jinja
