// Elementwise operators of two and more inputs, with broadcasting.
#include <cmath>
#include <limits>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

// Before opset 7 the second input was laid along the first one's dimensions from `axis` on.
Result<Shape> SecondShape(const OpInputs& c) {
  const Shape& a = c.shape(0);
  const Shape& b = c.shape(1);
  if (c.node.opset >= 7 || !c.node.Find("axis") || b.rank() >= a.rank()) return b;
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), a.rank()));
  if (axis + b.rank() > a.rank()) return Error::Invalid("axis ", axis, " leaves no room for ", b.ToString());
  std::vector<int64_t> dims = Dims(b);
  dims.resize(a.rank() - axis, 1);
  return MakeShape(dims);
}

Status InferTwo(InferContext& c, DType dtype) {
  CELER_ASSIGN(const Shape b, SecondShape(c));
  CELER_ASSIGN(const Shape shape, Broadcast(std::vector<Shape>{c.shape(0), b}));
  return c.Set(0, dtype, shape);
}
Status InferPair(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  return InferTwo(c, c.dtype(0));
}
Status InferComparison(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  return InferTwo(c, DType::kBool);
}

// The second input, laid out for broadcasting.
Result<TensorView> Second(const OpInputs& c) {
  CELER_ASSIGN(const Shape shape, SecondShape(c));
  return TensorView::Contiguous(c.in(1).data, c.dtype(1), Device::Cpu(), shape);
}

// kFn takes and gives the computing type.
template <class Types, auto kFn>
Status PairMap(KernelContext& c) {
  CELER_ASSIGN(const TensorView b, Second(c));
  DispatchOr(c.dtype(0), Types{},
             [&]<class T>() { MapPairs(c.pool, c.in(0), b, c.out(0), PairRow<T, T, T, kFn>); });
  return {};
}
template <class Types, auto kFn>
Status Compare(KernelContext& c) {
  CELER_ASSIGN(const TensorView b, Second(c));
  DispatchOr(c.dtype(0), Types{},
             [&]<class T>() { MapPairs(c.pool, c.in(0), b, c.out(0), PairRow<T, T, bool, kFn>); });
  return {};
}

constexpr auto kAdd = [](auto x, auto y) { return WrapAdd(x, y); };
constexpr auto kSub = [](auto x, auto y) {
  using T = decltype(x);
  return static_cast<T>(static_cast<Wrap<T>>(x) - static_cast<Wrap<T>>(y));
};
constexpr auto kMul = [](auto x, auto y) { return WrapMul(x, y); };
// A division by zero gives 0 for integers; the processor's trap must not end the program.
constexpr auto kDiv = [](auto x, auto y) {
  using T = decltype(x);
  if constexpr (std::is_integral_v<T>) {
    if (y == 0) return T{0};
    if constexpr (std::is_signed_v<T>)
      if (y == T(-1)) return static_cast<T>(0 - static_cast<uint64_t>(x));
    return static_cast<T>(x / y);
  } else {
    return x / y;
  }
};
constexpr auto kLargest = [](auto x, auto y) { return Larger(x, y); };
constexpr auto kSmallest = [](auto x, auto y) { return Smaller(x, y); };
constexpr auto kAnd = [](bool x, bool y) { return x && y; };
constexpr auto kOr = [](bool x, bool y) { return x || y; };
constexpr auto kXor = [](bool x, bool y) { return x != y; };
constexpr auto kEqual = [](auto x, auto y) { return x == y; };
constexpr auto kGreater = [](auto x, auto y) { return x > y; };
constexpr auto kLess = [](auto x, auto y) { return x < y; };
constexpr auto kGreaterOrEqual = [](auto x, auto y) { return x >= y; };
constexpr auto kLessOrEqual = [](auto x, auto y) { return x <= y; };
constexpr auto kBitAnd = [](auto x, auto y) { return static_cast<decltype(x)>(x & y); };
constexpr auto kBitOr = [](auto x, auto y) { return static_cast<decltype(x)>(x | y); };
constexpr auto kBitXor = [](auto x, auto y) { return static_cast<decltype(x)>(x ^ y); };
constexpr auto kPRelu = [](auto x, auto slope) {
  using T = decltype(x);
  return x < 0 ? static_cast<T>(static_cast<Wrap<T>>(x) * static_cast<Wrap<T>>(slope)) : x;
};

// The rest has the sign of the divisor, or with `kLikeC` of the dividend.
template <bool kLikeC>
constexpr auto kRest = [](auto x, auto y) {
  using T = decltype(x);
  if constexpr (std::is_integral_v<T>) {
    if (y == 0 || (std::is_signed_v<T> && y == static_cast<T>(-1))) return T{0};
    const T rest = static_cast<T>(x % y);
    return !kLikeC && rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(rest + y) : rest;
  } else {
    const T rest = std::fmod(x, y);
    return !kLikeC && rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  }
};
Status Mod(KernelContext& c) {
  return c.node.Int("fmod", 0) != 0 ? PairMap<NumberTypes, kRest<true>>(c)
                                    : PairMap<NumberTypes, kRest<false>>(c);
}

constexpr auto kPower = [](auto x, auto y) {
  using X = decltype(x);
  using Y = decltype(y);
  if constexpr (std::is_integral_v<X> && std::is_integral_v<Y>) {
    if (y < 0) return ConvertTo<X>(std::pow(static_cast<double>(x), static_cast<double>(y)));
    uint64_t out = 1, factor = static_cast<uint64_t>(x);
    for (auto e = static_cast<uint64_t>(y); e > 0; e >>= 1, factor *= factor)
      if (e & 1) out *= factor;
    return static_cast<X>(out);
  } else if constexpr (std::is_integral_v<X>) {
    const double out = std::pow(static_cast<double>(x), static_cast<double>(y));
    return std::abs(out) < 9e18 ? static_cast<X>(static_cast<int64_t>(out)) : X{0};
  } else {
    return static_cast<X>(y == 2 ? x * x : static_cast<X>(std::pow(x, y)));
  }
};
Status InferPow(InferContext& c) {
  if (!kNumbers.Has(c.dtype(1))) return Error::Invalid("its exponent is ", Name(c.dtype(1)));
  return InferTwo(c, c.dtype(0));
}
using PowTypes = TypeList<float, double, Half, Brain, int32_t, int64_t>;
Status Pow(KernelContext& c) {
  CELER_ASSIGN(TensorView b, Second(c));
  Data wide;
  if (c.dtype(1) != c.dtype(0)) {
    CELER_ASSIGN(wide, NewTensor(DType::kF64, b.shape));
    CastElements(c.pool, c.in(1), wide.tensor);
    b = wide.tensor;
  }
  DispatchOr(c.dtype(0), PowTypes{}, [&]<class X>() {
    MapPairs(c.pool, c.in(0), b, c.out(0),
             b.dtype == c.dtype(0) ? PairRow<X, X, X, kPower> : PairRow<X, double, X, kPower>);
  });
  return {};
}

template <bool kLeft>
constexpr auto kShift = [](auto x, auto y) {
  using T = decltype(x);
  if (y >= sizeof(T) * 8) return T{0};
  return static_cast<T>(kLeft ? static_cast<uint64_t>(x) << y : static_cast<uint64_t>(x) >> y);
};
Status BitShift(KernelContext& c) {
  return c.node.Text("direction", "LEFT") == "LEFT" ? PairMap<SizeTypes, kShift<true>>(c)
                                                    : PairMap<SizeTypes, kShift<false>>(c);
}

// Of any number of inputs, folded from the left.
constexpr auto kFirst = [](auto x, auto) { return x; };
template <class Types, auto kFn>
Status Variadic(KernelContext& c) {
  if (c.inputs() == 2) return PairMap<Types, kFn>(c);
  // The first is copied (or is the output already), the others are combined into it. An input that shares its
  // memory with the output would be lost before it is read, so then the work is done in a copy.
  bool aliased = false;
  for (size_t i = 1; i < c.inputs(); ++i) aliased = aliased || c.in(i).data == c.out(0).data;
  Data copy;
  TensorView out = c.out(0);
  if (aliased) {
    CELER_ASSIGN(copy, NewTensor(out.dtype, out.shape));
    out = copy.tensor;
  }
  DispatchSize(c.dtype(0),
               [&]<class T>() { MapPairs(c.pool, c.in(0), c.in(0), out, PairRow<T, T, T, kFirst>); });
  DispatchOr(c.dtype(0), Types{}, [&]<class T>() {
    for (size_t i = 1; i < c.inputs(); ++i) MapPairs(c.pool, out, c.in(i), out, PairRow<T, T, T, kFn>);
  });
  if (aliased) CastElements(c.pool, out, c.out(0));
  return {};
}
Status Sum(KernelContext& c) {
  return Variadic<FloatTypes, kAdd>(c);
}
Status Mean(KernelContext& c) {
  CELER_RETURN_IF_ERROR(Sum(c));
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    const auto count = static_cast<Compute<T>>(c.inputs());
    MapElements(c.pool, c.out(0).as<T>(), c.out(0).as<T>(), c.out_elements(0),
                [=](T x) { return static_cast<T>(Wide(x) / count); });
  });
  return {};
}

Status InferPRelu(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  return c.Set(0, c.dtype(0), c.shape(0));
}
// The slope is broadcast to the input; before opset 7 one slope per channel stood along axis 1.
Status PRelu(KernelContext& c) {
  TensorView slope = c.in(1);
  if (slope.shape.rank() == 1 && c.shape(0).rank() > 2 && slope.shape[0] == c.shape(0)[1] &&
      slope.shape[0] != 1 && (c.node.opset < 7 || slope.shape[0] != c.shape(0)[c.shape(0).rank() - 1])) {
    std::vector<int64_t> dims(static_cast<size_t>(c.shape(0).rank() - 1), 1);
    dims[0] = slope.shape[0];
    CELER_ASSIGN(const Shape along, MakeShape(dims));
    slope = TensorView::Contiguous(slope.data, slope.dtype, Device::Cpu(), along);
  }
  CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{c.shape(0), slope.shape}));
  if (!(together == c.shape(0)))
    return Error::Invalid("the slope ", slope.shape.ToString(), " does not broadcast to ",
                          c.shape(0).ToString());
  DispatchOr(c.dtype(0), NumberTypes{},
             [&]<class T>() { MapPairs(c.pool, c.in(0), slope, c.out(0), PairRow<T, T, T, kPRelu>); });
  return {};
}

Status InferWhere(InferContext& c) {
  if (c.dtype(1) != c.dtype(2))
    return Error::Invalid("its two branches are ", Name(c.dtype(1)), " and ", Name(c.dtype(2)));
  CELER_ASSIGN(const Shape shape, Broadcast(std::vector<Shape>{c.shape(0), c.shape(1), c.shape(2)}));
  return c.Set(0, c.dtype(1), shape);
}
Status Where(KernelContext& c) {
  if (c.out_elements(0) == 0) return {};
  DispatchSize(c.dtype(1), [&]<class T>() {
    const auto walk = MakeWalk<3>(c.out(0).shape, {c.shape(0), c.shape(1), c.shape(2)});
    const bool* const condition = c.in(0).as<bool>();
    const T *const a = c.in(1).as<T>(), *const b = c.in(2).as<T>();
    T* const out = c.out(0).as<T>();
    ForRows<3>(
        c.pool, walk,
        [&](int64_t o, const std::array<int64_t, 3>& at, int64_t n, const std::array<int64_t, 3>& step) {
          for (int64_t i = 0; i < n; ++i)
            out[o + i] = condition[at[0] + i * step[0]] ? a[at[1] + i * step[1]] : b[at[2] + i * step[2]];
        });
  });
  return {};
}

using Bool = TypeList<bool>;
constexpr unsigned kI = Operator::kInPlace;
constexpr Arity kOne = {1, 1}, kTwo = {2, 2}, kSome = {1, -1};
constexpr DTypeSet kPowers = kFloats | DTypeSet{DType::kI32, DType::kI64};
constexpr Operator kRows[] = {
    {"Add", 6, kTwo, kOne, kNumbers, InferPair, PairMap<NumberTypes, kAdd>, kI, nullptr, kFastBinary},
    {"And", 7, kTwo, kOne, kBools, InferPair, PairMap<Bool, kAnd>, kI},
    {"BitShift", 11, kTwo, kOne, kUnsigned, InferPair, BitShift, kI},
    {"BitwiseAnd", 18, kTwo, kOne, kIntegers, InferPair, PairMap<IntegerTypes, kBitAnd>, kI},
    {"BitwiseOr", 18, kTwo, kOne, kIntegers, InferPair, PairMap<IntegerTypes, kBitOr>, kI},
    {"BitwiseXor", 18, kTwo, kOne, kIntegers, InferPair, PairMap<IntegerTypes, kBitXor>, kI},
    {"Div", 6, kTwo, kOne, kNumbers, InferPair, PairMap<NumberTypes, kDiv>, kI, nullptr, kFastBinary},
    {"Equal", 7, kTwo, kOne, kNumbers | kBools, InferComparison, Compare<PlainTypes, kEqual>},
    {"Greater", 7, kTwo, kOne, kNumbers, InferComparison, Compare<NumberTypes, kGreater>},
    {"GreaterOrEqual", 12, kTwo, kOne, kNumbers, InferComparison, Compare<NumberTypes, kGreaterOrEqual>},
    {"Less", 7, kTwo, kOne, kNumbers, InferComparison, Compare<NumberTypes, kLess>},
    {"LessOrEqual", 12, kTwo, kOne, kNumbers, InferComparison, Compare<NumberTypes, kLessOrEqual>},
    {"Max", 6, kSome, kOne, kNumbers, InferBroadcast, Variadic<NumberTypes, kLargest>, kI, nullptr,
     kFastBinary},
    {"Mean", 6, kSome, kOne, kFloats, InferBroadcast, Mean, kI},
    {"Min", 6, kSome, kOne, kNumbers, InferBroadcast, Variadic<NumberTypes, kSmallest>, kI, nullptr,
     kFastBinary},
    {"Mod", 10, kTwo, kOne, kNumbers, InferPair, Mod, kI},
    {"Mul", 6, kTwo, kOne, kNumbers, InferPair, PairMap<NumberTypes, kMul>, kI, nullptr, kFastBinary},
    {"Or", 7, kTwo, kOne, kBools, InferPair, PairMap<Bool, kOr>, kI},
    {"PRelu", 6, kTwo, kOne, kNumbers, InferPRelu, PRelu, kI},
    {"Pow", 6, kTwo, kOne, kPowers, InferPow, Pow, Operator::kPlain, nullptr, kFastPow},
    {"Sub", 6, kTwo, kOne, kNumbers, InferPair, PairMap<NumberTypes, kSub>, kI, nullptr, kFastBinary},
    {"Sum", 6, kSome, kOne, kFloats, InferBroadcast, Sum, kI, nullptr, kFastBinary},
    {"Where", 9, {3, 3}, kOne, kBools, InferWhere, Where},
    {"Xor", 7, kTwo, kOne, kBools, InferPair, PairMap<Bool, kXor>, kI},
};

}  // namespace

std::span<const Operator> BinaryOperators() {
  return kRows;
}

}  // namespace celer::graph
