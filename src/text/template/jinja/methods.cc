// Methods of lists, tuples and dicts, the global functions, and how arguments are matched to parameters.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <unordered_map>

#include "base/utf8.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/interpreter.h"

namespace celer::jinja {
namespace {

// --- dict ---

Value Entry(Interpreter& in, const std::pair<Value, Value>& entry) {
  return MakeTuple(in.budget(), {entry.first, entry.second});
}

Value DictItems(Interpreter& in, const Value& self, const Args& args) {
  Bind("items", args, {}, 0);
  std::vector<Value> items;
  for (const auto& entry : self.dict().entries) items.push_back(Entry(in, entry));
  return MakeView(in.budget(), "dict_items", std::move(items));
}

Value DictKeys(Interpreter& in, const Value& self, const Args& args) {
  Bind("keys", args, {}, 0);
  return MakeView(in.budget(), "dict_keys", in.Items(self));
}

Value DictValues(Interpreter& in, const Value& self, const Args& args) {
  Bind("values", args, {}, 0);
  std::vector<Value> values;
  for (const auto& entry : self.dict().entries) values.push_back(entry.second);
  return MakeView(in.budget(), "dict_values", std::move(values));
}

Value DictGet(Interpreter& in, const Value& self, const Args& args) {
  if (!args.keyword.empty()) throw TemplateError("get() takes no named arguments");
  const auto bound = Bind("get", args, {"key", "default"}, 1);
  const Value* found = self.dict().Find(*bound[0], in.budget());
  return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value::None();
}

Value Copy(Interpreter&, const Value& self, const Args& args) {
  Bind("copy", args, {}, 0);
  return self;  // nothing can change it, so it is its own copy
}

Value DictFromKeys(Interpreter& in, const Value&, const Args& args) {
  const auto bound = Bind("fromkeys", args, {"iterable", "value"}, 1);
  auto dict = NewDict();
  for (const Value& key : in.Items(*bound[0]))
    dict->Set(key, bound[1] ? *bound[1] : Value::None(), in.budget());
  return FinishDict(in.budget(), std::move(dict));
}

// --- list, tuple, range ---

Value ListIndex(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("index", args, {"value", "start", "stop"}, 1);
  const auto& items = self.sequence().items;
  const auto length = static_cast<int64_t>(items.size());
  const auto bring_in = [&](const Value* v, int64_t fallback) {
    int64_t i = IntArg("index", v, fallback);
    if (i < 0) i = std::max<int64_t>(0, i + length);
    return std::min(i, length);
  };
  const int64_t end = bring_in(bound[2], length);
  for (int64_t i = bring_in(bound[1], 0); i < end; ++i) {
    in.budget().Charge(1);
    if (Equal(items[i], *bound[0], in.budget())) return Value::Integer(i);
  }
  throw TemplateError("index(): the value is not in the " + TypeName(self));
}

Value ListCount(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("count", args, {"value"}, 1);
  int64_t n = 0;
  for (const Value& item : self.sequence().items) {
    in.budget().Charge(1);
    n += Equal(item, *bound[0], in.budget());
  }
  return Value::Integer(n);
}

Value IsInteger(Interpreter&, const Value& self, const Args& args) {
  Bind("is_integer", args, {}, 0);
  const double d = self.AsDouble();
  return Value::Bool(std::isfinite(d) && d == std::floor(d));
}

Value Whole(Interpreter&, const Value& self, const Args& args) {
  Bind("conjugate", args, {}, 0);
  return Value::Integer(self.integer());
}

Value BitLength(Interpreter&, const Value& self, const Args& args) {
  Bind("bit_length", args, {}, 0);
  int bits = 0;
  for (Int rest = self.integer(); rest != 0; rest /= 2) ++bits;
  return Value::Integer(bits);
}

// --- cycler ---

Value CyclerNext(Interpreter&, const Value& self, const Args& args) {
  Bind("next", args, {}, 0);
  auto& cycler = self.object<CyclerObject>();
  const size_t now = cycler.position;
  cycler.position = (now + 1) % cycler.items.size();
  return cycler.items[now];
}

Value CyclerReset(Interpreter&, const Value& self, const Args& args) {
  Bind("reset", args, {}, 0);
  self.object<CyclerObject>().position = 0;
  return Value::None();
}

// --- globals ---

Value Range(Interpreter& in, const Value&, const Args& args) {
  const size_t n = args.positional.size();
  if (!args.keyword.empty() || n < 1 || n > 3) throw TemplateError("range() takes one to three integers");
  for (const Value& v : args.positional)
    if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  const Int start = n > 1 ? IntArg("range", &args.positional[0], 0) : 0;
  const Int stop = IntArg("range", &args.positional[n > 1 ? 1 : 0], 0);
  const Int step = n > 2 ? IntArg("range", &args.positional[2], 1) : 1;
  if (step == 0) throw TemplateError("range() cannot have a step of 0");
  const Int span = step > 0 ? stop - start : start - stop;
  const Int by = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span + by - 1) / by;
  if (count > in.budget().limits().range_items)
    throw TemplateError("range() of more than " + std::to_string(in.budget().limits().range_items) +
                        " items");
  std::vector<Value> items;
  items.reserve(count);
  for (Int i = 0; i < count; ++i) items.push_back(Value::Integer(start + i * step));
  Value value = MakeSequence(in.budget(), Kind::kRange, std::move(items));
  auto& range = value.object<Sequence>();
  range.start = static_cast<int64_t>(start);
  range.stop = static_cast<int64_t>(stop);
  range.step = static_cast<int64_t>(step);
  return value;
}

// The entries that dict(mapping or pairs, **named) is made of.
void FillDict(Interpreter& in, const char* name, const Args& args, Dict& dict) {
  if (args.positional.size() > 1)
    throw TemplateError(std::string(name) + "() takes at most one positional argument");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.Is(Kind::kDict)) {
      for (const auto& [key, value] : from.dict().entries) dict.Set(key, value, in.budget());
    } else {
      for (const Value& pair : in.Items(from)) {
        const std::vector<Value> two = in.Items(pair);
        if (two.size() != 2) throw TemplateError(std::string(name) + "() needs pairs of a key and a value");
        dict.Set(two[0], two[1], in.budget());
      }
    }
  }
  for (const auto& [key, value] : args.keyword) dict.Set(in.Text(key), value, in.budget());
}

Value MakeDict(Interpreter& in, const Value&, const Args& args) {
  auto dict = NewDict();
  FillDict(in, "dict", args, *dict);
  return FinishDict(in.budget(), std::move(dict));
}

Value MakeNamespace(Interpreter& in, const Value&, const Args& args) {
  Value value = in.NewNamespace();
  Dict& attributes = value.name_space().attributes;
  FillDict(in, "namespace", args, attributes);
  for (const auto& entry : attributes.entries)
    if (entry.first.Is(Kind::kString) && entry.first.text().starts_with('_'))
      throw TemplateError("a namespace cannot have the attribute '" + entry.first.text() +
                          "': it starts with an underscore");
  return value;
}

int DepthOf(Budget& budget, const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  budget.CheckNesting(depth + 1);
  return depth + 1;
}

Value MakeCycler(Interpreter& in, const Value&, const Args& args) {
  if (args.positional.empty() || !args.keyword.empty())
    throw TemplateError("cycler() needs at least one value");
  auto cycler = std::make_shared<CyclerObject>();
  cycler->items = args.positional;
  cycler->depth = DepthOf(in.budget(), cycler->items);
  in.budget().Charge(4 + static_cast<int64_t>(cycler->items.size()));
  return {Kind::kCycler, std::move(cycler)};
}

Value MakeJoiner(Interpreter& in, const Value&, const Args& args) {
  const auto bound = Bind("joiner", args, {"sep"}, 0);
  auto joiner = std::make_shared<JoinerObject>();
  joiner->separator = bound[0] != nullptr ? *bound[0] : in.Text(", ");
  joiner->depth = DepthOf(in.budget(), {joiner->separator});
  return {Kind::kJoiner, std::move(joiner)};
}

Value RaiseException(Interpreter& in, const Value&, const Args& args) {
  const auto bound = Bind("raise_exception", args, {"message"}, 1);
  TemplateError error(in.Str(*bound[0]));
  error.raised = true;
  throw error;
}

// As datetime.strftime(): %f (microseconds) is 0, and %z and %Z are empty, because the time has whole seconds
// and no zone; the rest, with its flags and widths, is the C library's.
Value StrftimeNow(Interpreter& in, const Value&, const Args& args) {
  const auto bound = Bind("strftime_now", args, {"format"}, 1);
  const std::string& given = StringArg("strftime_now", bound[0]);
  if (given.find('\0') != std::string::npos)
    throw TemplateError("strftime_now(): the format has a NUL in it");
  std::tm local{};
  const std::time_t now = in.now();
  if (localtime_r(&now, &local) == nullptr) throw TemplateError("strftime_now(): the time is out of range");
  local.tm_isdst = -1;  // no zone, so that a %z or %Z with a flag is empty too
  local.tm_zone = "";
  std::string format;
  for (size_t i = 0; i < given.size(); ++i) {
    const char next = given[i] == '%' && i + 1 < given.size() ? given[i + 1] : '\0';
    if (next == 'f') format += "000000";
    if (next == '%') format += "%%";
    if (next == '%' || next == 'f' || next == 'z' || next == 'Z') {
      ++i;
    } else {
      format.push_back(given[i]);
    }
  }
  if (format.empty()) return in.Text("");
  // Python's bound on what a format may grow to: beyond it, the text is empty.
  const size_t most = std::max<size_t>(1024, 256 * format.size());
  std::string out;
  for (size_t size = 1024;; size *= 2) {
    in.budget().ChargeString(static_cast<int64_t>(size));
    out.resize(size);
    const size_t written = std::strftime(out.data(), out.size(), format.c_str(), &local);
    out.resize(written);
    if (written > 0 || size >= most) break;
  }
  if (!utf8::IsValid(out)) throw TemplateError("strftime_now(): the format makes no text");
  return in.Text(std::move(out));
}

}  // namespace

FilterFn FindMethod(Kind kind, std::string_view name, bool* forbidden) {
  static const std::unordered_map<std::string_view, FilterFn> kDict = {
      {"items", DictItems}, {"keys", DictKeys}, {"values", DictValues},
      {"get", DictGet},     {"copy", Copy},     {"fromkeys", DictFromKeys}};
  static const std::unordered_map<std::string_view, FilterFn> kSequence = {{"index", ListIndex},
                                                                           {"count", ListCount}};
  static constexpr std::string_view kChangeDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kChangeList[] = {"append", "clear", "pop",    "reverse",
                                                     "insert", "sort",  "extend", "remove"};
  const auto find = [&](const auto& table) {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second;
  };
  *forbidden = false;
  switch (kind) {
    case Kind::kString:
      return FindStringMethod(name);
    case Kind::kDict:
      *forbidden = std::ranges::find(kChangeDict, name) != std::end(kChangeDict);
      return find(kDict);
    case Kind::kList:
      *forbidden = std::ranges::find(kChangeList, name) != std::end(kChangeList);
      return name == "copy" ? Copy : find(kSequence);
    case Kind::kTuple:
    case Kind::kRange:
      return find(kSequence);
    case Kind::kFloat:
      return name == "is_integer" ? IsInteger : name == "conjugate" ? Copy : nullptr;
    case Kind::kBool:
    case Kind::kInt:
      return name == "bit_length" ? BitLength : name == "conjugate" ? Whole : nullptr;
    case Kind::kCycler:
      return name == "next" ? CyclerNext : name == "reset" ? CyclerReset : nullptr;
    default:
      return nullptr;
  }
}

FilterFn FindGlobal(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> kGlobals = {{"range", Range},
                                                                          {"dict", MakeDict},
                                                                          {"namespace", MakeNamespace},
                                                                          {"cycler", MakeCycler},
                                                                          {"joiner", MakeJoiner},
                                                                          {"raise_exception", RaiseException},
                                                                          {"strftime_now", StrftimeNow}};
  const auto found = kGlobals.find(name);
  return found == kGlobals.end() ? nullptr : found->second;
}

Value MakeFunction(Budget& budget, std::string name, FilterFn call, Value self) {
  auto function = std::make_shared<FunctionObject>();
  function->depth = self.depth() + 1;
  budget.CheckNesting(function->depth);
  function->name = std::move(name);
  function->call = call;
  function->self = std::move(self);
  return {Kind::kFunction, std::move(function)};
}

std::vector<const Value*> Bind(const char* function, const Args& args,
                               std::initializer_list<const char*> names, size_t required) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (args.positional.size() > names.size())
    throw TemplateError(std::string(function) + " takes at most " + std::to_string(names.size()) +
                        " arguments, got " + std::to_string(args.positional.size()));
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const auto* at = std::find(names.begin(), names.end(), std::string_view(name));
    if (at == names.end()) throw TemplateError(std::string(function) + " has no parameter '" + name + "'");
    const auto index = static_cast<size_t>(at - names.begin());
    if (bound[index] != nullptr) throw TemplateError(std::string(function) + " got '" + name + "' twice");
    bound[index] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr)
      throw TemplateError(std::string(function) + " needs the argument '" + names.begin()[i] + "'");
  return bound;
}

int64_t IntArg(const char* function, const Value* value, int64_t fallback) {
  if (value == nullptr) return fallback;
  if (value->Is(Kind::kUndefined)) throw TemplateError(value->undefined_reason());
  if (!value->IsIntegral())
    throw TemplateError(std::string(function) + " needs an integer, not " + TypeName(*value));
  const auto n = ToInt64(value->integer());
  if (!n) throw TemplateError(std::string(function) + " got an integer that is too large");
  return *n;
}

const std::string& StringArg(const char* function, const Value* value) {
  if (value->Is(Kind::kUndefined)) throw TemplateError(value->undefined_reason());
  if (!value->Is(Kind::kString))
    throw TemplateError(std::string(function) + " needs a string, not " + TypeName(*value));
  return value->text();
}

bool BoolArg(const Value* value, bool fallback) {
  return value == nullptr ? fallback : Truthy(*value);
}

}  // namespace celer::jinja
