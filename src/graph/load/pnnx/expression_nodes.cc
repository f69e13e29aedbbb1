// pnnx.Expression as nodes. Types follow PyTorch: integers stay integers, and one float makes all floats.
#include <cmath>

#include "graph/load/pnnx/expression.h"
#include "graph/load/pnnx/lowering.h"

namespace celer::graph {
namespace {

using K = Expression::Kind;

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF64 || type == DType::kF16 || type == DType::kBf16;
}

struct Same {
  std::string_view call, node;
};
constexpr Same kFloatFunctions[] = {{"acos", "Acos"},
                                    {"acosh", "Acosh"},
                                    {"asin", "Asin"},
                                    {"asinh", "Asinh"},
                                    {"atan", "Atan"},
                                    {"atanh", "Atanh"},
                                    {"cos", "Cos"},
                                    {"cosh", "Cosh"},
                                    {"erf", "Erf"},
                                    {"exp", "Exp"},
                                    {"log", "Log"},
                                    {"sin", "Sin"},
                                    {"sinh", "Sinh"},
                                    {"sqrt", "Sqrt"},
                                    {"tan", "Tan"},
                                    {"tanh", "Tanh"},
                                    {"reciprocal", "Reciprocal"},
                                    {"sigmoid", "Sigmoid"}};
constexpr Same kAnyFunctions[] = {{"abs", "Abs"}, {"neg", "Neg"}, {"sign", "Sign"}};
constexpr Same kRounding[] = {
    {"ceil", "Ceil"}, {"floor", "Floor"}, {"round", "Round"}};  // integers are round already
constexpr Same kBinary[] = {{"add", "Add"}, {"sub", "Sub"},     {"mul", "Mul"}, {"pow", "Pow"},
                            {"max", "Max"}, {"maximum", "Max"}, {"min", "Min"}, {"minimum", "Min"}};
constexpr Same kLogic[] = {{"and", "And"}, {"or", "Or"}, {"xor", "Xor"}};
constexpr Same kCompare[] = {
    {"eq", "Equal"}, {"lt", "Less"}, {"le", "LessOrEqual"}, {"gt", "Greater"}, {"ge", "GreaterOrEqual"}};

template <size_t N>
std::string_view Find(const Same (&table)[N], std::string_view call) {
  for (const Same& row : table)
    if (row.call == call) return row.node;
  return "";
}

class Builder {
 public:
  explicit Builder(Lowering& lowering) : l(lowering) {}

  ValueId Any(const Expression& e) {
    switch (e.kind) {
      case K::kInput:
        return l.Input(static_cast<size_t>(e.number));
      case K::kInt:
        return l.ConstantInt(e.number);
      case K::kFloat:
        return l.ConstantFloat(e.value);
      case K::kBool:
        return l.Cast(l.ConstantInt(e.number), DType::kBool);
      case K::kList:
        return List(e);
      case K::kCall:
        return Call(e);
      case K::kNone:
      case K::kText:
        break;
    }
    return l.Fail("'", Print(e), "' is no value");
  }

 private:
  ValueId List(const Expression& e) {
    std::vector<ValueId> items;
    bool floats = false;
    for (const Expression& item : e.items) {
      items.push_back(Any(item));
      floats |= IsFloat(l.TypeOf(items.back()));
    }
    const DType type = floats ? DType::kF32 : DType::kI64;
    for (ValueId& item : items) item = l.Node("Reshape", {l.Cast(item, type), l.Constants({1})}, {}, type);
    if (items.empty()) return l.Constants({});
    return l.Node("Concat", items, {{"axis", int64_t{0}}}, type);
  }

  ValueId Float(ValueId x) { return IsFloat(l.TypeOf(x)) ? x : l.Cast(x, DType::kF32); }
  ValueId Like(double number, ValueId x) { return l.ConstantFloat(number, l.TypeOf(x)); }

  ValueId Call(const Expression& e) {
    const std::string& f = e.name;
    if (f == "size") return Size(e);
    std::vector<ValueId> args;
    for (const Expression& item : e.items) args.push_back(Any(item));
    if (args.size() == 1) return Unary(f, args[0]);
    if (args.size() == 2) return Binary(f, args[0], args[1]);
    return l.Fail("'", f, "' with ", args.size(), " arguments is not known");
  }

  ValueId Size(const Expression& e) {
    if (e.items.empty() || e.items.size() > 2) return l.Fail("size() takes an input and a dimension");
    const ValueId x = Any(e.items[0]);
    if (e.items.size() == 1) return l.ShapeOf(x);
    if (e.items[1].kind != K::kInt) return l.Fail("the dimension of size() is not a number");
    return l.SizeOf(x, e.items[1].number);
  }

  ValueId Unary(const std::string& f, ValueId x) {
    if (const auto node = Find(kFloatFunctions, f); !node.empty()) return l.Node(node, {Float(x)});
    if (const auto node = Find(kAnyFunctions, f); !node.empty()) return l.Node(node, {x});
    if (const auto node = Find(kRounding, f); !node.empty())
      return IsFloat(l.TypeOf(x)) ? l.Node(node, {x}) : x;
    if (f == "square") return l.Node("Mul", {x, x});
    if (f == "torch.bool") return l.Cast(x, DType::kBool);
    if (f == "torch.float") return l.Cast(x, DType::kF32);
    if (f == "torch.long") return l.Cast(Truncated(x), DType::kI64);
    if (f == "int") return l.Cast(Truncated(x), DType::kI64);
    if (f == "trunc") return Truncated(x);
    if (f == "not") return l.Node("Not", {l.Cast(x, DType::kBool)}, {}, DType::kBool);
    const ValueId y = Float(x);
    if (f == "expm1") return l.Node("Sub", {l.Node("Exp", {y}), Like(1, y)});
    if (f == "log1p") return l.Node("Log", {l.Node("Add", {y, Like(1, y)})});
    if (f == "log10") return l.Node("Div", {l.Node("Log", {y}), Like(std::log(10.0), y)});
    if (f == "log2") return l.Node("Div", {l.Node("Log", {y}), Like(std::log(2.0), y)});
    if (f == "rsqrt") return l.Node("Reciprocal", {l.Node("Sqrt", {y})});
    return l.Fail("the function '", f, "' of one argument is not known");
  }

  ValueId Truncated(ValueId x) {
    if (!IsFloat(l.TypeOf(x))) return x;
    return l.Node("Mul", {l.Node("Sign", {x}), l.Node("Floor", {l.Node("Abs", {x})})});
  }

  // Both of one type.
  void Unite(ValueId& a, ValueId& b) {
    const DType ta = l.TypeOf(a), tb = l.TypeOf(b);
    if (ta == tb) return;
    // A number takes the type of the tensor it meets, unless it is a float that meets an integer.
    const bool fa = IsFloat(ta), fb = IsFloat(tb);
    DType type = DType::kF32;
    if (fa && fb)
      type = l.Rank(a) == 0                           ? tb
             : l.Rank(b) == 0                         ? ta
             : ta == DType::kF64 || tb == DType::kF64 ? DType::kF64
                                                      : DType::kF32;
    else if (fa || fb)
      type = fa ? ta : tb;
    else
      type = ta == DType::kBool ? tb : tb == DType::kBool ? ta : DType::kI64;
    a = l.Cast(a, type);
    b = l.Cast(b, type);
  }

  ValueId FloorDiv(ValueId a, ValueId b) {
    const DType type = l.TypeOf(a);
    if (IsFloat(type)) return l.Node("Floor", {l.Node("Div", {a, b})});
    const ValueId quotient = l.Node("Div", {l.Cast(a, DType::kF64), l.Cast(b, DType::kF64)});
    return l.Cast(l.Node("Floor", {quotient}), type);
  }

  ValueId Binary(const std::string& f, ValueId a, ValueId b) {
    if (const auto node = Find(kLogic, f); !node.empty()) {
      if (l.TypeOf(a) == DType::kBool && l.TypeOf(b) == DType::kBool) return l.Node(node, {a, b});
      Unite(a, b);
      return l.Node("Bitwise" + std::string(node), {a, b});
    }
    if (f == "lshift" || f == "rshift") {
      const ValueId power =
          l.Cast(l.Node("Pow", {l.ConstantFloat(2, DType::kF64), l.Cast(b, DType::kF64)}), l.TypeOf(a));
      return f == "lshift" ? l.Node("Mul", {a, power}) : FloorDiv(a, power);
    }
    Unite(a, b);
    if (l.TypeOf(a) == DType::kBool) {
      a = l.Cast(a, DType::kI64);
      b = l.Cast(b, DType::kI64);
    }
    if (const auto node = Find(kBinary, f); !node.empty()) return l.Node(node, {a, b});
    if (const auto node = Find(kCompare, f); !node.empty()) return l.Node(node, {a, b}, {}, DType::kBool);
    if (f == "ne") return l.Node("Not", {l.Node("Equal", {a, b}, {}, DType::kBool)}, {}, DType::kBool);
    if (f == "floor_divide") return FloorDiv(a, b);
    if (f == "remainder") return l.Node("Sub", {a, l.Node("Mul", {FloorDiv(a, b), b})});
    if (f == "fmod") return l.Node("Mod", {a, b}, {{"fmod", int64_t{1}}});
    a = Float(a);
    b = Float(b);
    if (f == "div") return l.Node("Div", {a, b});
    if (f == "logaddexp") {
      const ValueId gap = l.Node("Neg", {l.Node("Abs", {l.Node("Sub", {a, b})})});
      return l.Node(
          "Add", {l.Node("Max", {a, b}), l.Node("Log", {l.Node("Add", {l.Node("Exp", {gap}), Like(1, a)})})});
    }
    if (f == "atan2") return Atan2(a, b);
    return l.Fail("the function '", f, "' of two arguments is not known");
  }

  // atan(y / x), and on the left half of the plane pi further in the direction of y.
  ValueId Atan2(ValueId y, ValueId x) {
    const ValueId zero = Like(0, x);
    const ValueId left = l.Node("Less", {x, zero}, {}, DType::kBool),
                  below = l.Node("Less", {y, zero}, {}, DType::kBool);
    const ValueId turn = l.Node(
        "Where", {left, l.Node("Where", {below, Like(-M_PI, x), Like(M_PI, x)}, {}, l.TypeOf(x)), zero}, {},
        l.TypeOf(x));
    const ValueId origin = l.Node(
        "And", {l.Node("Equal", {x, zero}, {}, DType::kBool), l.Node("Equal", {y, zero}, {}, DType::kBool)});
    const ValueId angle = l.Node("Add", {l.Node("Atan", {l.Node("Div", {y, x})}), turn});
    return l.Node("Where", {origin, zero, angle}, {}, l.TypeOf(x));
  }

  Lowering& l;
};

}  // namespace

void LowerExpression(Lowering& l) {
  const std::string text = l.Text("expr", "");
  const auto expression = ParseExpression(text);
  if (!expression) {
    l.Fail(expression.error().message());
    return;
  }
  l.Output(0, Builder(l).Any(*expression));
}

}  // namespace celer::graph
