// The tests of `value is name`.
#include <unordered_map>

#include "text/template/jinja/builtins.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/str_tools.h"

namespace celer::jinja {
namespace {

template <bool (*question)(const Value&)>
bool Ask(Interpreter&, const Value& v, const Args& args) {
  Bind("the test", args, {}, 0);
  return question(v);
}

template <Kind kind>
bool IsKind(const Value& v) {
  return v.Is(kind);
}
bool IsDefined(const Value& v) {
  return !v.Is(Kind::kUndefined);
}
bool IsTrue(const Value& v) {
  return v.Is(Kind::kBool) && v.boolean();
}
bool IsFalse(const Value& v) {
  return v.Is(Kind::kBool) && !v.boolean();
}
bool IsNumber(const Value& v) {
  return v.IsNumber();
}
bool IsCallable(const Value& v) {
  return v.IsCallable();
}
bool IsEscaped(const Value& v) {
  return v.Is(Kind::kString) && v.string().markup;
}
bool IsSequence(const Value& v) {  // has a length and takes an index
  return v.IsSequence() || v.Is(Kind::kString) || v.Is(Kind::kDict) || v.Is(Kind::kUndefined);
}
bool IsIterable(const Value& v) {
  return IsSequence(v) || v.Is(Kind::kView) || v.Is(Kind::kIterator) || v.Is(Kind::kLoop);
}

template <bool upper>
bool IsCase(Interpreter& in, const Value& v, const Args& args) {
  Bind("the test", args, {}, 0);
  return HasCase(in.Str(v), upper, in.budget());
}

bool Remainder(Interpreter& in, const Value& v, const Value& divisor, Int wanted) {
  return Equal(in.Math(Op::kMod, v, divisor), Value::Integer(wanted), in.budget());
}
bool IsOdd(Interpreter& in, const Value& v, const Args& args) {
  Bind("odd", args, {}, 0);
  return Remainder(in, v, Value::Integer(2), 1);
}
bool IsEven(Interpreter& in, const Value& v, const Args& args) {
  Bind("even", args, {}, 0);
  return Remainder(in, v, Value::Integer(2), 0);
}
bool IsDivisibleBy(Interpreter& in, const Value& v, const Args& args) {
  return Remainder(in, v, *Bind("divisibleby", args, {"num"}, 1)[0], 0);
}
bool IsSameAs(Interpreter&, const Value& v, const Args& args) {
  return v.SameObject(*Bind("sameas", args, {"other"}, 1)[0]);
}
bool IsIn(Interpreter& in, const Value& v, const Args& args) {
  return in.Contains(*Bind("in", args, {"seq"}, 1)[0], v);
}
bool IsFilter(Interpreter& in, const Value& v, const Args& args) {
  Bind("filter", args, {}, 0);
  Hash(v, in.budget());
  return v.Is(Kind::kString) && FindFilter(v.text()) != nullptr;
}
bool IsTest(Interpreter& in, const Value& v, const Args& args) {
  Bind("test", args, {}, 0);
  Hash(v, in.budget());
  return v.Is(Kind::kString) && FindTest(v.text()) != nullptr;
}

template <Op op>
bool Ordered(Interpreter& in, const Value& v, const Args& args) {
  const Value& other = *Bind("a comparison", args, {"other"}, 1)[0];
  if constexpr (op == Op::kEq) return Equal(v, other, in.budget());
  if constexpr (op == Op::kNe) return !Equal(v, other, in.budget());
  const int order = Compare(v, other, "<", in.budget());
  switch (op) {
    case Op::kLt:
      return order == -1;
    case Op::kGt:
      return order == 1;
    case Op::kLe:
      return order == -1 || order == 0;
    default:
      return order == 1 || order == 0;
  }
}

}  // namespace

TestFn FindTest(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFn> kTests = {
      {"odd", IsOdd},
      {"even", IsEven},
      {"divisibleby", IsDivisibleBy},
      {"defined", Ask<IsDefined>},
      {"undefined", Ask<IsKind<Kind::kUndefined>>},
      {"filter", IsFilter},
      {"test", IsTest},
      {"none", Ask<IsKind<Kind::kNone>>},
      {"boolean", Ask<IsKind<Kind::kBool>>},
      {"false", Ask<IsFalse>},
      {"true", Ask<IsTrue>},
      {"integer", Ask<IsKind<Kind::kInt>>},
      {"float", Ask<IsKind<Kind::kFloat>>},
      {"lower", IsCase<false>},
      {"upper", IsCase<true>},
      {"string", Ask<IsKind<Kind::kString>>},
      {"mapping", Ask<IsKind<Kind::kDict>>},
      {"number", Ask<IsNumber>},
      {"sequence", Ask<IsSequence>},
      {"iterable", Ask<IsIterable>},
      {"callable", Ask<IsCallable>},
      {"sameas", IsSameAs},
      {"escaped", Ask<IsEscaped>},
      {"in", IsIn},
      {"==", Ordered<Op::kEq>},
      {"eq", Ordered<Op::kEq>},
      {"equalto", Ordered<Op::kEq>},
      {"!=", Ordered<Op::kNe>},
      {"ne", Ordered<Op::kNe>},
      {">", Ordered<Op::kGt>},
      {"gt", Ordered<Op::kGt>},
      {"greaterthan", Ordered<Op::kGt>},
      {">=", Ordered<Op::kGe>},
      {"ge", Ordered<Op::kGe>},
      {"<", Ordered<Op::kLt>},
      {"lt", Ordered<Op::kLt>},
      {"lessthan", Ordered<Op::kLt>},
      {"<=", Ordered<Op::kLe>},
      {"le", Ordered<Op::kLe>},
  };
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace celer::jinja
