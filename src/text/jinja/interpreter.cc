#include "text/jinja/interpreter.h"

#include <algorithm>

#include "text/jinja/format.h"
#include "text/jinja/unicode.h"

namespace celer::jinja {

struct Interpreter::MacroObject : Object {
  const MacroDef* definition = nullptr;
  std::shared_ptr<Scope> scope;
};

// Items are drawn one at a time, because the filter of a loop may depend on what its body has done so far.
struct Interpreter::LoopObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Scope> outer;
  std::vector<Value> source;
  size_t next = 0;
  bool filtered = false;  // what is left of source has passed the filter
  std::optional<Value> after;
  Value before, current;
  int64_t index0 = -1;
  int depth0 = 0;
  std::optional<int64_t> length;
  std::optional<Value> last_changed;
};

class Interpreter::Nested {
 public:
  explicit Nested(Interpreter& in) : in_(in) {
    if (++in_.depth_ > in_.budget_.limits().depth)
      throw TemplateError("template exceeded a depth of " + std::to_string(in_.budget_.limits().depth) +
                          "; a macro may call itself without end");
  }
  ~Nested() { --in_.depth_; }

 private:
  Interpreter& in_;
};

Interpreter::Interpreter(const Template& source, const Limits& limits, std::time_t now)
    : source_(source), budget_(limits), now_(now), context_(source.names.size()), scope_(std::make_shared<Scope>(nullptr)) {
  for (size_t i = 0; i < source.names.size(); ++i)
    if (FilterFn global = FindGlobal(source.names[i]))
      context_[i] = MakeFunction(budget_, source.names[i], global, Value::None());
}

Interpreter::~Interpreter() {
  for (const auto& object : namespaces_) static_cast<Namespace&>(*object).attributes.entries.clear();
  for (const auto& scope : captured_) scope->variables.clear();
}

void Interpreter::SetVariable(const std::string& name, Value value) {
  const auto at = std::ranges::find(source_.names, name);
  if (at != source_.names.end()) context_[static_cast<size_t>(at - source_.names.begin())] = std::move(value);
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
    case StmtKind::kData: Write(s.text); break;
    case StmtKind::kOutput: {
      const Value value = Eval(*s.value);
      if (value.Is(Kind::kString)) {
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
    case StmtKind::kFor: return ExecFor(s);
    case StmtKind::kSet: {
      CheckTarget(*s.target);
      Assign(*s.target, Eval(*s.value));
      break;
    }
    case StmtKind::kSetBlock: {
      auto inner = std::make_shared<Scope>(scope_);
      Value text = Text(Capture(s.body, inner));
      if (s.value) {
        const Value* saved = std::exchange(block_text_, &text);
        auto outer = std::exchange(scope_, inner);
        Value filtered = Eval(*s.value);
        scope_ = std::move(outer);
        block_text_ = saved;
        text = std::move(filtered);
      }
      CheckTarget(*s.target);
      Assign(*s.target, std::move(text));
      break;
    }
    case StmtKind::kMacro: scope_->Set(s.macro->name_id, NewMacro(*s.macro)); break;
    case StmtKind::kCallBlock: {
      const Value caller = NewMacro(*s.macro);
      Write(Str(EvalCall(*s.value, &caller)));
      break;
    }
    case StmtKind::kFilterBlock: {
      auto inner = std::make_shared<Scope>(scope_);
      const Value text = Text(Capture(s.body, inner));
      const Value* saved = std::exchange(block_text_, &text);
      auto outer = std::exchange(scope_, inner);
      Write(Str(Eval(*s.value)));
      scope_ = std::move(outer);
      block_text_ = saved;
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
    case StmtKind::kScope: Write(Capture(s.body, std::make_shared<Scope>(scope_))); break;
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::CheckTarget(const Expr& target) {
  if (target.kind == ExprKind::kNsRef && !Lookup(target.name).Is(Kind::kNamespace))
    throw TemplateError("cannot set '" + source_.names[static_cast<size_t>(target.name)] + "." + target.text +
                        "': only attributes of a namespace() can be set");
  for (const ExprPtr& child : target.children) CheckTarget(*child);
}

void Interpreter::Assign(const Expr& target, Value value) {
  budget_.Charge(1);
  if (target.kind == ExprKind::kName) {
    scope_->Set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExprKind::kNsRef) {
    if (target.text.starts_with('_'))
      throw TemplateError("a namespace cannot have the attribute '" + target.text + "': it starts with an underscore");
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

// --- Loops ---

Interpreter::Flow Interpreter::ExecFor(const Stmt& s) {
  const Value iterable = Eval(*s.value);
  if (!s.recursive) return RunLoop(s, iterable, scope_, 0);
  std::string saved = std::exchange(out_, {});
  RunLoop(s, iterable, scope_, 0);
  const std::string text = std::exchange(out_, std::move(saved));
  Write(text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunLoop(const Stmt& s, const Value& iterable, const std::shared_ptr<Scope>& outer,
                                       int depth0) {
  Nested nested(*this);
  auto loop = std::make_shared<LoopObject>();
  loop->stmt = &s;
  loop->outer = outer;
  loop->depth0 = depth0;
  loop->depth = iterable.depth() + 1;
  loop->source = Items(iterable);
  loop->filtered = s.filter == nullptr;
  const Value loop_value(Kind::kLoop, loop);
  // A namespace may keep the loop object; it must not keep the scope, which may hold the namespace.
  struct Close {
    LoopObject& loop;
    ~Close() { loop.outer.reset(); }
  } close{*loop};
  std::shared_ptr<Scope> saved = scope_;
  bool completed = false;
  while (true) {
    std::optional<Value> item = loop->after ? std::exchange(loop->after, std::nullopt) : PullItem(*loop);
    if (!item) break;
    budget_.Charge(1);
    ++loop->index0;
    loop->before = std::exchange(loop->current, *item);
    scope_ = std::make_shared<Scope>(outer);
    Assign(*s.target, *std::move(item));
    scope_->Set(kNameLoop, loop_value);
    const Flow flow = Exec(s.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) completed = true;  // Jinja: a loop whose every turn is cut short runs its else
  }
  scope_ = saved;
  if (!completed && !s.otherwise.empty()) {
    scope_ = std::make_shared<Scope>(outer);
    const Flow flow = Exec(s.otherwise);
    scope_ = saved;
    return flow;
  }
  return Flow::kNext;
}

std::optional<Value> Interpreter::PullItem(LoopObject& loop) {
  while (loop.next < loop.source.size() && loop.outer) {
    Value item = loop.source[loop.next++];
    if (loop.filtered) return item;
    budget_.Charge(1);
    auto saved = std::exchange(scope_, std::make_shared<Scope>(loop.outer));
    Assign(*loop.stmt->target, item);
    const bool passes = Truthy(Eval(*loop.stmt->filter));
    scope_ = std::move(saved);
    if (passes) return item;
  }
  return std::nullopt;
}

bool Interpreter::PeekItem(LoopObject& loop) {
  if (!loop.after) loop.after = PullItem(loop);
  return loop.after.has_value();
}

int64_t Interpreter::LoopLength(LoopObject& loop) {
  if (!loop.length) {
    if (!loop.filtered) {
      std::vector<Value> rest;
      while (std::optional<Value> item = PullItem(loop)) rest.push_back(*std::move(item));
      loop.source = std::move(rest);
      loop.next = 0;
      loop.filtered = true;
      loop.length = loop.index0 + 1 + (loop.after ? 1 : 0) + static_cast<int64_t>(loop.source.size());
    } else {
      loop.length = static_cast<int64_t>(loop.source.size());
    }
  }
  return *loop.length;
}

Value Interpreter::LoopCycle(Interpreter&, const Value& self, const Args& args) {
  if (args.positional.empty()) throw TemplateError("loop.cycle() needs at least one value");
  const auto index = static_cast<size_t>(self.object<LoopObject>().index0);
  return args.positional[index % args.positional.size()];
}

Value Interpreter::LoopChanged(Interpreter& in, const Value& self, const Args& args) {
  auto& loop = self.object<LoopObject>();
  Value now = MakeTuple(in.budget_, args.positional);
  if (loop.last_changed && Equal(*loop.last_changed, now, in.budget_)) return Value::Bool(false);
  loop.depth = std::max(loop.depth, now.depth() + 1);
  in.budget_.CheckNesting(loop.depth);
  loop.last_changed = std::move(now);
  return Value::Bool(true);
}

Value Interpreter::LoopAttribute(const Value& value, const std::string& name) {
  auto& loop = value.object<LoopObject>();
  if (name == "index") return Value::Integer(loop.index0 + 1);
  if (name == "index0") return Value::Integer(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(!PeekItem(loop));
  if (name == "length") return Value::Integer(LoopLength(loop));
  if (name == "revindex") return Value::Integer(LoopLength(loop) - loop.index0);
  if (name == "revindex0") return Value::Integer(LoopLength(loop) - loop.index0 - 1);
  if (name == "depth") return Value::Integer(loop.depth0 + 1);
  if (name == "depth0") return Value::Integer(loop.depth0);
  if (name == "previtem") return loop.index0 == 0 ? Value::Undefined("there is no previous item") : loop.before;
  if (name == "nextitem") return PeekItem(loop) ? *loop.after : Value::Undefined("there is no next item");
  if (name == "cycle") return MakeFunction(budget_, name, &LoopCycle, value);
  if (name == "changed") return MakeFunction(budget_, name, &LoopChanged, value);
  return Value::Undefined("'loop' has no attribute '" + name + "'");
}

// --- Macros ---

Value Interpreter::NewMacro(const MacroDef& definition) {
  budget_.Charge(32);
  auto macro = std::make_shared<MacroObject>();
  macro->definition = &definition;
  macro->scope = scope_;
  captured_.push_back(scope_);
  return {Kind::kMacro, std::move(macro)};
}

Value Interpreter::CallMacro(const Value& value, const Args& args) {
  Nested nested(*this);
  const auto& macro = value.object<MacroObject>();
  const MacroDef& def = *macro.definition;
  const std::string label = "macro '" + def.name + "'";
  auto scope = std::make_shared<Scope>(macro.scope);
  auto keyword = args.keyword;
  const auto take = [&keyword](std::string_view name) -> std::optional<Value> {
    for (auto at = keyword.begin(); at != keyword.end(); ++at) {
      if (at->first != name) continue;
      Value found = std::move(at->second);
      keyword.erase(at);
      return found;
    }
    return std::nullopt;
  };

  std::shared_ptr<Scope> saved = std::exchange(scope_, scope);
  const size_t count = def.parameters.size();
  bool caller_bound = false;
  std::vector<std::optional<Value>> given(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& [id, name] = def.parameters[i];
    caller_bound |= id == kNameCaller;
    given[i] = i < args.positional.size() ? args.positional[i] : take(name);
  }
  if (def.uses_caller && !caller_bound) {
    std::optional<Value> caller = take("caller");
    scope->Set(kNameCaller, caller ? *std::move(caller) : Value::Undefined("'caller' is undefined: there is no call block"));
  }
  if (def.uses_kwargs) {
    auto rest = NewDict();
    for (auto& [name, v] : keyword) rest->Set(Text(name), v, budget_);
    scope->Set(kNameKwargs, FinishDict(budget_, std::move(rest)));
  } else if (!keyword.empty()) {
    throw TemplateError(label + " has no parameter '" + keyword.front().first + "'");
  }
  if (def.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    scope->Set(kNameVarargs, MakeTuple(budget_, std::move(rest)));
  } else if (args.positional.size() > count) {
    throw TemplateError(label + " takes at most " + std::to_string(count) + " arguments, got " +
                        std::to_string(args.positional.size()));
  }
  for (size_t i = 0; i < count; ++i)
    if (given[i]) scope->Set(def.parameters[i].first, *std::move(given[i]));
  for (size_t i = 0; i < count; ++i) {
    const auto& [id, name] = def.parameters[i];
    if (scope->Find(id) != nullptr) continue;
    const size_t first_default = count - def.defaults.size();
    scope->Set(id, i >= first_default ? Eval(*def.defaults[i - first_default])
                                      : Value::Undefined("parameter '" + name + "' was not provided"));
  }
  std::string text = Capture(def.body, scope);
  scope_ = std::move(saved);
  return Text(std::move(text));
}

Value Interpreter::Call(const Value& callee, const Args& args) {
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.object<FunctionObject>();
      return function.call(*this, function.self, args);
    }
    case Kind::kMacro: return CallMacro(callee, args);
    case Kind::kLoop: {
      const auto& loop = callee.object<LoopObject>();
      if (!loop.outer || !loop.stmt->recursive) throw TemplateError("a loop can only be called if it is marked 'recursive'");
      if (args.positional.size() != 1 || !args.keyword.empty()) throw TemplateError("loop() takes one argument");
      std::string saved = std::exchange(out_, {});
      RunLoop(*loop.stmt, args.positional[0], loop.outer, loop.depth0 + 1);
      return Text(std::exchange(out_, std::move(saved)));
    }
    case Kind::kJoiner: {
      auto& joiner = callee.object<JoinerObject>();
      return std::exchange(joiner.used, true) ? joiner.separator : Text("");
    }
    case Kind::kUndefined: throw TemplateError(callee.undefined_reason());
    default: throw TemplateError("a value of type " + TypeName(callee) + " cannot be called");
  }
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
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get())
    if (const Value* value = scope->Find(name)) return *value;
  const auto index = static_cast<size_t>(name);
  if (context_[index]) return *context_[index];
  return Value::Undefined("'" + source_.names[index] + "' is undefined");
}

Value Interpreter::EvalNode(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kConst: return e.constant;
    case ExprKind::kName:
    case ExprKind::kNsRef: return Lookup(e.name);
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
    case ExprKind::kNegate: return Negate(Eval(*e.children[0]));
    case ExprKind::kPlus: {
      const Value value = Eval(*e.children[0]);
      return value.Is(Kind::kFloat) ? value : Math(Op::kAdd, Value::Integer(0), value);
    }
    case ExprKind::kNot: return Value::Bool(!Truthy(Eval(*e.children[0])));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value;
      for (const ExprPtr& child : e.children) {
        value = Eval(*child);
        if (Truthy(value) == (e.kind == ExprKind::kOr)) return value;
      }
      return value;
    }
    case ExprKind::kMath: return EvalMath(e);
    case ExprKind::kCompare: return EvalCompare(e);
    case ExprKind::kConcat: return EvalConcat(e);
    case ExprKind::kCond:
      if (Truthy(Eval(*e.children[0]))) return Eval(*e.children[1]);
      if (e.children[2]) return Eval(*e.children[2]);
      return Value::Undefined("the inline if is false and has no else");
    case ExprKind::kAttribute: return Attribute(Eval(*e.children[0]), e.text);
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
    case ExprKind::kCall: return EvalCall(e, nullptr);
    case ExprKind::kFilter: {
      const Value input = e.children[0] ? Eval(*e.children[0]) : *block_text_;
      if (e.filter == nullptr) throw TemplateError("the filter '" + e.text + "' does not exist or is not supported");
      return e.filter(*this, input, EvalArguments(e.arguments.get()));
    }
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
      case Op::kEq: holds = Equal(left, right, budget_); break;
      case Op::kNe: holds = !Equal(left, right, budget_); break;
      case Op::kIn: holds = Contains(right, left); break;
      case Op::kNotIn: holds = !Contains(right, left); break;
      case Op::kLt: holds = Compare(left, right, "<", budget_) == -1; break;
      case Op::kGt: holds = Compare(left, right, ">", budget_) == 1; break;
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
      default: break;
    }
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvalConcat(const Expr& e) {
  std::string text;
  for (const ExprPtr& child : e.children) {
    const Value value = Eval(*child);
    const std::string& piece = value.Is(Kind::kString) ? value.text() : Str(value);
    budget_.CheckString(static_cast<int64_t>(text.size() + piece.size()));
    text += piece;
  }
  return Text(std::move(text));
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
    if (!more.Is(Kind::kDict)) throw TemplateError("the argument after ** must be a dict, not " + TypeName(more));
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

// --- Access to parts of values ---

Value Interpreter::Attribute(const Value& object, const std::string& name) {
  budget_.Charge(1);
  bool forbidden = false;
  switch (object.kind()) {
    case Kind::kUndefined:
      if (name.starts_with("__") && name.ends_with("__")) break;
      throw TemplateError(object.undefined_reason());
    case Kind::kLoop: return LoopAttribute(object, name);
    case Kind::kNamespace:
      if (const Value* value = object.name_space().attributes.Find(name)) return *value;
      break;
    case Kind::kMacro: {
      const MacroDef& def = *object.object<MacroObject>().definition;
      if (name == "name") return Text(def.name);
      if (name == "catch_kwargs") return Value::Bool(def.uses_kwargs);
      if (name == "catch_varargs") return Value::Bool(def.uses_varargs);
      if (name == "caller") return Value::Bool(def.uses_caller);
      if (name == "arguments") {
        std::vector<Value> names;
        for (const auto& parameter : def.parameters) names.push_back(Text(parameter.second));
        return MakeTuple(budget_, std::move(names));
      }
      break;
    }
    case Kind::kCycler: {
      const auto& cycler = object.object<CyclerObject>();
      if (name == "current") return cycler.items[cycler.position];
      if (name == "pos") return Value::Integer(static_cast<Int>(cycler.position));
      break;
    }
    case Kind::kTuple:
      if (object.sequence().group && (name == "grouper" || name == "list"))
        return object.sequence().items[name == "list" ? 1 : 0];
      break;
    case Kind::kFunction:
      if (object.object<FunctionObject>().name == "dict" && name == "fromkeys")
        return MakeFunction(budget_, name, FindMethod(Kind::kDict, name, &forbidden), object);
      break;
    default: break;
  }
  if (FilterFn method = FindMethod(object.kind(), name, &forbidden)) return MakeFunction(budget_, name, method, object);
  if (forbidden)
    return Value::Undefined("the method '" + name + "' of a " + TypeName(object) + " is not allowed in a template");
  if (object.Is(Kind::kDict))
    if (const Value* value = object.dict().Find(name)) return *value;
  return Value::Undefined("a value of type " + TypeName(object) + " has no attribute '" + name + "'");
}

Value Interpreter::Item(const Value& object, const Value& key) {
  budget_.Charge(1);
  if (object.Is(Kind::kUndefined)) throw TemplateError(object.undefined_reason());
  if (object.Is(Kind::kDict)) {
    const bool hashable = !key.Is(Kind::kList) && !key.Is(Kind::kDict) && !key.Is(Kind::kView);
    const Value* value = key.Is(Kind::kString) ? object.dict().Find(key.text())
                         : hashable            ? object.dict().Find(key, budget_)
                                               : nullptr;
    if (value != nullptr) return *value;
  } else if (key.IsIntegral() && (object.IsSequence() || object.Is(Kind::kString))) {
    const auto length = static_cast<Int>(object.Is(Kind::kString) ? object.string().length
                                                                  : static_cast<int64_t>(object.sequence().items.size()));
    const Int index = key.integer() < 0 ? key.integer() + length : key.integer();
    if (index < 0 || index >= length) return Value::Undefined("a " + TypeName(object) + " has no element " + Repr(key));
    if (!object.Is(Kind::kString)) return object.sequence().items[static_cast<size_t>(index)];
    const String& s = object.string();
    const size_t at = s.ascii() ? static_cast<size_t>(index) : ByteOffset(s.text, static_cast<int64_t>(index));
    if (!s.ascii()) budget_.Charge(static_cast<int64_t>(at) / 64);
    size_t n = 0;
    DecodeAt(s.text, at, &n);
    return Text(s.text.substr(at, n), s.markup);
  }
  if (key.Is(Kind::kString)) return Attribute(object, key.text());
  return Value::Undefined("a value of type " + TypeName(object) + " has no element " + Repr(key));
}

Value Interpreter::AttributePath(const Value& object, const Value& path) {
  if (path.Is(Kind::kNone)) return object;
  if (!path.Is(Kind::kString)) return Item(object, path);
  Value value = object;
  const std::string& text = path.text();
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('.', start), text.size());
    const std::string part = text.substr(start, end - start);
    const bool digits = !part.empty() && part.size() < 18 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    value = Item(value, digits ? Value::Integer(std::stoll(part)) : Text(part));
    start = end + 1;
  }
  return value;
}

std::vector<Value> Interpreter::Items(const Value& iterable) {
  switch (iterable.kind()) {
    case Kind::kUndefined: return {};
    case Kind::kString: {
      const String& s = iterable.string();
      budget_.Charge(4 * s.length);
      std::vector<Value> items;
      items.reserve(static_cast<size_t>(s.length));
      for (size_t i = 0, n; i < s.text.size(); i += n) {
        DecodeAt(s.text, i, &n);
        items.push_back(Text(s.text.substr(i, n)));
      }
      return items;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: budget_.Charge(3 * static_cast<int64_t>(iterable.sequence().items.size())); return iterable.sequence().items;
    case Kind::kIterator: {
      auto& sequence = iterable.object<Sequence>();
      budget_.Charge(3 * static_cast<int64_t>(sequence.items.size() - sequence.consumed));
      std::vector<Value> rest(sequence.items.begin() + static_cast<int64_t>(sequence.consumed), sequence.items.end());
      sequence.consumed = sequence.items.size();
      return rest;
    }
    case Kind::kDict: {
      budget_.Charge(3 * static_cast<int64_t>(iterable.dict().size()));
      std::vector<Value> keys;
      keys.reserve(iterable.dict().size());
      for (const auto& entry : iterable.dict().entries) keys.push_back(entry.first);
      return keys;
    }
    default: throw TemplateError("a value of type " + TypeName(iterable) + " cannot be looped over");
  }
}

int64_t Interpreter::Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return value.string().length;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView: return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict: return static_cast<int64_t>(value.dict().size());
    case Kind::kLoop: return LoopLength(value.object<LoopObject>());
    default: throw TemplateError("a value of type " + TypeName(value) + " has no length");
  }
}

}  // namespace celer::jinja
