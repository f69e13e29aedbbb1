// Arithmetic, membership and slices, with Python's results.
#include <cmath>

#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/str_tools.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

const char* OpName(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    case Op::kPow:
      return "**";
    default:
      return "?";
  }
}

[[noreturn]] void Overflow() {
  throw TemplateError("an integer does not fit in 128 bits");
}
[[noreturn]] void DivisionByZero() {
  throw TemplateError("division by zero");
}

Value IntPower(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) DivisionByZero();
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::Integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::Integer(exponent % 2 == 0 ? 1 : -1);
  if (exponent > 127) Overflow();
  Int result = 1;
  for (Int i = 0; i < exponent; ++i)
    if (__builtin_mul_overflow(result, base, &result)) Overflow();
  return Value::Integer(result);
}

Value IntMath(Op op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) Overflow();
      break;
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &result)) Overflow();
      break;
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &result)) Overflow();
      break;
    case Op::kDiv:
      if (b == 0) DivisionByZero();
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0) DivisionByZero();
      if (b == -1) {  // the one quotient that can overflow
        if (op == Op::kMod) return Value::Integer(0);
        if (__builtin_sub_overflow(Int{0}, a, &result)) Overflow();
        break;
      }
      Int quotient = a / b, remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {  // round towards minus infinity
        --quotient;
        remainder += b;
      }
      result = op == Op::kMod ? remainder : quotient;
      break;
    }
    default:
      return IntPower(a, b);
  }
  return Value::Integer(result);
}

double FloatMod(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) remainder += b;
  } else {
    remainder = std::copysign(0.0, b);
  }
  return remainder;
}

double FloatFloorDiv(double a, double b) {
  const double quotient = (a - FloatMod(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value FloatMath(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value::Float(a + b);
    case Op::kSub:
      return Value::Float(a - b);
    case Op::kMul:
      return Value::Float(a * b);
    case Op::kDiv:
      if (b == 0) DivisionByZero();
      return Value::Float(a / b);
    case Op::kFloorDiv:
      if (b == 0) DivisionByZero();
      return Value::Float(FloatFloorDiv(a, b));
    case Op::kMod:
      if (b == 0) DivisionByZero();
      return Value::Float(FloatMod(a, b));
    default:
      break;
  }
  if (a == 0 && b < 0) DivisionByZero();
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    throw TemplateError("a negative number cannot be raised to a fraction");
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw TemplateError("a number is too large");
  return Value::Float(power);
}

}  // namespace

Value Interpreter::Negate(const Value& a) {
  if (a.Is(Kind::kFloat)) return Value::Float(-a.AsDouble());
  return Math(Op::kSub, Value::Integer(0), a);
}

Value Interpreter::Math(Op op, const Value& a, const Value& b) {
  if (op == Op::kMod && a.Is(Kind::kString))
    return Text(PercentFormat(a.text(), b, a.string().markup, budget_), a.string().markup);
  for (const Value* side : {&a, &b})
    if (side->Is(Kind::kUndefined)) throw TemplateError(side->undefined_reason());
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsIntegral() && b.IsIntegral()) return IntMath(op, a.integer(), b.integer());
    return FloatMath(op, a.AsDouble(), b.AsDouble());
  }
  if (op == Op::kAdd && a.kind() == b.kind()) {
    if (a.Is(Kind::kString)) {
      const bool markup = a.string().markup || b.string().markup;
      std::string left = markup && !a.string().markup ? EscapeHtml(a.text(), budget_) : a.text();
      const std::string right = markup && !b.string().markup ? EscapeHtml(b.text(), budget_) : b.text();
      budget_.CheckString(static_cast<int64_t>(left.size() + right.size()));
      return Text(left += right, markup);
    }
    if (a.Is(Kind::kList) || a.Is(Kind::kTuple)) {
      std::vector<Value> items = Items(a);
      for (Value& item : Items(b)) items.push_back(std::move(item));
      return MakeSequence(budget_, a.kind(), std::move(items));
    }
  }
  if (op == Op::kMul && (a.IsIntegral() || b.IsIntegral())) {
    const Value& what = a.IsIntegral() ? b : a;
    const Int times = std::max(Int{0}, a.IsIntegral() ? a.integer() : b.integer());
    Int total = 0;
    if (what.Is(Kind::kString)) {
      if (__builtin_mul_overflow(times, static_cast<Int>(what.text().size()), &total)) Overflow();
      budget_.CheckString(ToInt64(total).value_or(INT64_MAX));
      std::string text;
      text.reserve(total);
      if (!what.text().empty())
        for (Int i = 0; i < times; ++i) text += what.text();
      return Text(std::move(text), what.string().markup);
    }
    if (what.Is(Kind::kList) || what.Is(Kind::kTuple)) {
      const auto& items = what.sequence().items;
      if (__builtin_mul_overflow(times, static_cast<Int>(items.size()), &total)) Overflow();
      budget_.Charge(3 * static_cast<int64_t>(std::min<Int>(total, INT64_MAX / 8)));
      std::vector<Value> repeated;
      if (!items.empty())
        for (Int i = 0; i < times; ++i) repeated.insert(repeated.end(), items.begin(), items.end());
      return MakeSequence(budget_, what.kind(), std::move(repeated));
    }
  }
  throw TemplateError(std::string("'") + OpName(op) + "' is not defined between " + TypeName(a) + " and " +
                      TypeName(b));
}

bool Interpreter::Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.Is(Kind::kString))
        throw TemplateError("'in' a string needs a string on its left side, not " + TypeName(item));
      budget_.Charge(static_cast<int64_t>(container.text().size()) / 16);
      return FindText(container.text(), item.text()) != std::string::npos;
    case Kind::kDict:
      budget_.Charge(1);
      return container.dict().Find(item, budget_) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      for (const Value& element : container.sequence().items) {
        budget_.Charge(1);
        if (Equal(element, item, budget_)) return true;
      }
      return false;
    default:
      for (const Value& element : Items(container)) {
        budget_.Charge(1);
        if (Equal(element, item, budget_)) return true;
      }
      return false;
  }
}

Value Interpreter::Slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.Is(Kind::kUndefined)) throw TemplateError(object.undefined_reason());
  if (!object.Is(Kind::kString) && !object.IsSequence())
    throw TemplateError("a value of type " + TypeName(object) + " cannot be sliced");
  for (const Value* part : {&start, &stop, &step})
    if (!part->Is(Kind::kNone) && !part->IsIntegral())
      throw TemplateError("a slice index must be an integer, not " + TypeName(*part));
  const Int length = Length(object);
  const Int by = step.Is(Kind::kNone) ? 1 : step.integer();
  if (by == 0) throw TemplateError("the step of a slice must not be 0");
  // As slice.indices(): start and stop, with negative and too large indices clamped.
  const auto bring_in = [&](const Value& index, Int fallback) {
    if (index.Is(Kind::kNone)) return fallback;
    const Int i = index.integer() < 0 ? index.integer() + length : index.integer();
    return by > 0 ? std::min(std::max(i, Int{0}), length) : std::min(std::max(i, Int{-1}), length - 1);
  };
  const Int from = bring_in(start, by > 0 ? Int{0} : length - 1);
  const Int to = bring_in(stop, by > 0 ? length : Int{-1});

  if (object.Is(Kind::kString)) {
    const String& s = object.string();
    if (by == 1) {
      if (from >= to) return Text("", s.markup);
      const size_t first =
          s.ascii() ? static_cast<size_t>(from) : ByteOffset(s.text, static_cast<int64_t>(from));
      const size_t last = s.ascii() ? static_cast<size_t>(to)
                                    : first + ByteOffset(std::string_view(s.text).substr(first),
                                                         static_cast<int64_t>(to - from));
      budget_.Charge(static_cast<int64_t>(last) / 64);
      return Text(s.text.substr(first, last - first), s.markup);
    }
    const std::vector<Value> characters = Items(object);
    std::string text;
    for (Int i = from; by > 0 ? i < to : i > to; i += by) text += characters[i].text();
    return Text(std::move(text), s.markup);
  }
  const auto& all = object.sequence().items;
  std::vector<Value> items;
  for (Int i = from; by > 0 ? i < to : i > to; i += by) items.push_back(all[i]);
  Value result = MakeSequence(budget_, object.kind(), std::move(items));
  if (object.Is(Kind::kRange)) {
    auto& range = result.object<Sequence>();
    const auto& source = object.sequence();
    range.step = source.step * static_cast<int64_t>(std::min(std::max(by, -length - 1), length + 1));
    range.start = source.start + static_cast<int64_t>(from) * source.step;
    range.stop = source.start + static_cast<int64_t>(to) * source.step;
  }
  return result;
}

}  // namespace celer::jinja
