#include <algorithm>

#include "text/template/jinja/interpreter_objects.h"

namespace celer::jinja {

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

Interpreter::Flow Interpreter::RunLoop(const Stmt& s, const Value& iterable, std::shared_ptr<Scope> outer,
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
  if (name == "previtem")
    return loop.index0 == 0 ? Value::Undefined("there is no previous item") : loop.before;
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
    scope->Set(kNameCaller, caller ? *std::move(caller)
                                   : Value::Undefined("'caller' is undefined: there is no call block"));
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
  return Text(std::move(text), autoescape_);
}

Value Interpreter::Call(const Value& callee, const Args& args) {
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.object<FunctionObject>();
      return function.call(*this, function.self, args);
    }
    case Kind::kMacro:
      return CallMacro(callee, args);
    case Kind::kLoop: {
      const auto& loop = callee.object<LoopObject>();
      if (!loop.outer || !loop.stmt->recursive)
        throw TemplateError("a loop can only be called if it is marked 'recursive'");
      if (args.positional.size() != 1 || !args.keyword.empty())
        throw TemplateError("loop() takes one argument");
      std::string saved = std::exchange(out_, {});
      RunLoop(*loop.stmt, args.positional[0], loop.outer, loop.depth0 + 1);
      return Text(std::exchange(out_, std::move(saved)), EscapesAt(loop.stmt->autoescape));
    }
    case Kind::kJoiner: {
      auto& joiner = callee.object<JoinerObject>();
      return std::exchange(joiner.used, true) ? joiner.separator : Text("");
    }
    case Kind::kUndefined:
      throw TemplateError(callee.undefined_reason());
    default:
      throw TemplateError("a value of type " + TypeName(callee) + " cannot be called");
  }
}

}  // namespace celer::jinja
