// Attributes, items and lengths of values.
#include <algorithm>

#include "text/template/jinja/interpreter_objects.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

// What jinja2's sandbox hides. A name that Python's object has gives a value whose use is a SecurityError;
// another is looked up as a key, or is an attribute of something undefined, which is an error at once. The
// two differ only here.
constexpr std::string_view kOfEveryObject[] = {
    "__class__",   "__delattr__", "__dir__",           "__doc__",          "__eq__",
    "__format__",  "__ge__",      "__getattribute__",  "__getstate__",     "__gt__",
    "__hash__",    "__init__",    "__init_subclass__", "__le__",           "__lt__",
    "__ne__",      "__new__",     "__reduce__",        "__reduce_ex__",    "__repr__",
    "__setattr__", "__sizeof__",  "__str__",           "__subclasshook__", "__getitem__",
    "__iter__",    "__len__"};
constexpr std::string_view kOfDict[] = {"__class_getitem__", "__contains__", "__delitem__",
                                        "__ior__",           "__or__",       "__reversed__",
                                        "__ror__",           "__setitem__"};
constexpr std::string_view kOfUndefined[] = {"__add__",
                                             "__aiter__",
                                             "__bool__",
                                             "__call__",
                                             "__complex__",
                                             "__div__",
                                             "__float__",
                                             "__floordiv__",
                                             "__getattr__",
                                             "__int__",
                                             "__mod__",
                                             "__module__",
                                             "__mul__",
                                             "__neg__",
                                             "__pos__",
                                             "__pow__",
                                             "__radd__",
                                             "__rdiv__",
                                             "__rfloordiv__",
                                             "__rmod__",
                                             "__rmul__",
                                             "__rpow__",
                                             "__rsub__",
                                             "__rtruediv__",
                                             "__slots__",
                                             "__sub__",
                                             "__truediv__",
                                             "_fail_with_undefined_error",
                                             "_undefined_exception",
                                             "_undefined_hint",
                                             "_undefined_message",
                                             "_undefined_name",
                                             "_undefined_obj"};

template <size_t n>
bool IsAmong(std::string_view name, const std::string_view (&names)[n]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool IsHidden(Kind kind, std::string_view name) {
  if (!name.starts_with('_')) return false;
  if (IsAmong(name, kOfEveryObject)) return true;
  if (kind == Kind::kDict) return IsAmong(name, kOfDict);
  if (kind == Kind::kUndefined) return IsAmong(name, kOfUndefined);
  return name.starts_with("__") && name.ends_with("__");
}

Value Hidden(const Value& object, const std::string& name) {
  return Value::Undefined("SecurityError: access to attribute '" + name + "' of a " + TypeName(object) +
                          " is unsafe");
}

}  // namespace

Value Interpreter::Attribute(const Value& object, const std::string& name) {
  budget_.Charge(1);
  bool forbidden = false;
  switch (object.kind()) {
    case Kind::kUndefined:
      if (IsHidden(object.kind(), name)) return Hidden(object, name);
      throw TemplateError(object.undefined_reason());
    case Kind::kLoop:
      return LoopAttribute(object, name);
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
    case Kind::kRange:
      if (name == "start") return Value::Integer(object.sequence().start);
      if (name == "stop") return Value::Integer(object.sequence().stop);
      if (name == "step") return Value::Integer(object.sequence().step);
      break;
    case Kind::kBool:
    case Kind::kInt:
      if (name == "real" || name == "numerator") return Value::Integer(object.integer());
      if (name == "imag") return Value::Integer(0);
      if (name == "denominator") return Value::Integer(1);
      break;
    case Kind::kFloat:
      if (name == "real") return object;
      if (name == "imag") return Value::Float(0);
      break;
    case Kind::kFunction:
      if (object.object<FunctionObject>().name == "dict" && name == "fromkeys")
        return MakeFunction(budget_, name, FindMethod(Kind::kDict, name, &forbidden), object);
      break;
    default:
      break;
  }
  if (FilterFn method = FindMethod(object.kind(), name, &forbidden))
    return MakeFunction(budget_, name, method, object);
  if (forbidden || IsHidden(object.kind(), name)) return Hidden(object, name);
  if (object.Is(Kind::kDict))
    if (const Value* value = object.dict().Find(name)) return *value;
  return Value::Undefined("a value of type " + TypeName(object) + " has no attribute '" + name + "'");
}

bool Interpreter::HasAttribute(const Value& object, const std::string& name) {
  if (!object.Is(Kind::kDict)) return true;  // only a dict's keys could be taken for attributes
  bool forbidden = false;
  return FindMethod(Kind::kDict, name, &forbidden) != nullptr || forbidden || IsHidden(Kind::kDict, name);
}

Value Interpreter::Item(const Value& object, const Value& key) {
  budget_.Charge(1);
  if (object.Is(Kind::kUndefined)) throw TemplateError(object.undefined_reason());
  if (object.Is(Kind::kDict)) {
    const bool hashable = !key.Is(Kind::kList) && !key.Is(Kind::kDict);
    const Value* value = key.Is(Kind::kString) ? object.dict().Find(key.text())
                         : hashable            ? object.dict().Find(key, budget_)
                                               : nullptr;
    if (value != nullptr) return *value;
  } else if (key.IsIntegral() && (object.IsSequence() || object.Is(Kind::kString))) {
    const auto length =
        static_cast<Int>(object.Is(Kind::kString) ? object.string().length
                                                  : static_cast<int64_t>(object.sequence().items.size()));
    const Int index = key.integer() < 0 ? key.integer() + length : key.integer();
    if (index < 0 || index >= length)
      return Value::Undefined("a " + TypeName(object) + " has no element " + Repr(key));
    if (!object.Is(Kind::kString)) return object.sequence().items[index];
    const String& s = object.string();
    const size_t at =
        s.ascii() ? static_cast<size_t>(index) : ByteOffset(s.text, static_cast<int64_t>(index));
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
    const bool digits = !part.empty() && part.size() < 18 &&
                        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    value = Item(value, digits ? Value::Integer(std::stoll(part)) : Text(part));
    start = end + 1;
  }
  return value;
}

std::vector<Value> Interpreter::Items(const Value& iterable) {
  switch (iterable.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kString: {
      const String& s = iterable.string();
      budget_.Charge(4 * s.length);
      std::vector<Value> items;
      items.reserve(s.length);
      for (size_t i = 0, n; i < s.text.size(); i += n) {
        DecodeAt(s.text, i, &n);
        items.push_back(Text(s.text.substr(i, n)));
      }
      return items;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      budget_.Charge(3 * static_cast<int64_t>(iterable.sequence().items.size()));
      return iterable.sequence().items;
    case Kind::kIterator: {
      auto& sequence = iterable.object<Sequence>();
      budget_.Charge(3 * static_cast<int64_t>(sequence.items.size() - sequence.consumed));
      std::vector<Value> rest(sequence.items.begin() + static_cast<int64_t>(sequence.consumed),
                              sequence.items.end());
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
    default:
      throw TemplateError("a value of type " + TypeName(iterable) + " cannot be looped over");
  }
}

int64_t Interpreter::Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.string().length;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    case Kind::kLoop:
      return LoopLength(value.object<LoopObject>());
    default:
      throw TemplateError("a value of type " + TypeName(value) + " has no length");
  }
}

}  // namespace celer::jinja
