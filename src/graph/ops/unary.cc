// Elementwise operators of one input.
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

// fn takes and gives the computing type.
template <class Types, class Fn>
Status Map(KernelContext& c, Types types, const Fn& fn) {
  DispatchOr(c.dtype(0), types, [&]<class T>() {
    MapElements(c.pool, c.in(0).as<T>(), c.out(0).as<T>(), c.elements(0),
                [&](T x) { return static_cast<T>(fn(Wide(x))); });
  });
  return {};
}

template <auto kFn>
Status FloatMap(KernelContext& c) {
  return Map(c, FloatTypes{}, [](auto x) { return kFn(x); });
}
template <auto kFn>
Status NumberMap(KernelContext& c) {
  return Map(c, NumberTypes{}, [](auto x) { return kFn(x); });
}

constexpr auto kAbs = [](auto x) {
  using T = decltype(x);
  if constexpr (std::is_unsigned_v<T>)
    return x;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(x < 0 ? -static_cast<std::make_unsigned_t<T>>(x)
                                : static_cast<std::make_unsigned_t<T>>(x));
  else
    return std::abs(x);
};
constexpr auto kNeg = [](auto x) {
  using T = decltype(x);
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(x));
  else
    return -x;
};
constexpr auto kSign = [](auto x) {
  using T = decltype(x);
  if constexpr (!std::is_integral_v<T>)
    if (x != x) return x;
  return static_cast<T>((x > 0) - (x < 0));
};
constexpr auto kRelu = [](auto x) {
  using T = decltype(x);
  return x > 0 ? x : static_cast<T>(x != x ? x : 0);
};
constexpr auto kExp = [](auto x) { return std::exp(x); };
constexpr auto kLog = [](auto x) { return std::log(x); };
constexpr auto kSqrt = [](auto x) { return std::sqrt(x); };
constexpr auto kReciprocal = [](auto x) { return 1 / x; };
constexpr auto kCeil = [](auto x) { return std::ceil(x); };
constexpr auto kFloor = [](auto x) { return std::floor(x); };
constexpr auto kRound = [](auto x) { return std::nearbyint(x); };  // halves to even
constexpr auto kSin = [](auto x) { return std::sin(x); };
constexpr auto kCos = [](auto x) { return std::cos(x); };
constexpr auto kTan = [](auto x) { return std::tan(x); };
constexpr auto kAsin = [](auto x) { return std::asin(x); };
constexpr auto kAcos = [](auto x) { return std::acos(x); };
constexpr auto kAtan = [](auto x) { return std::atan(x); };
constexpr auto kSinh = [](auto x) { return std::sinh(x); };
constexpr auto kCosh = [](auto x) { return std::cosh(x); };
constexpr auto kTanh = [](auto x) { return std::tanh(x); };
constexpr auto kAsinh = [](auto x) { return std::asinh(x); };
constexpr auto kAcosh = [](auto x) { return std::acosh(x); };
constexpr auto kAtanh = [](auto x) { return std::atanh(x); };
constexpr auto kErf = [](auto x) { return std::erf(x); };
constexpr auto kSoftsign = [](auto x) { return x / (1 + std::abs(x)); };
constexpr auto kSigmoid = [](auto x) { return 1 / (1 + std::exp(-x)); };
// log(1 + e^x) without overflow.
constexpr auto kSoftplus = [](auto x) {
  using T = decltype(x);
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
};
constexpr auto kMish = [](auto x) { return x * std::tanh(kSoftplus(x)); };
constexpr auto kHardSwish = [](auto x) {
  using T = decltype(x);
  return x * std::clamp(x / 6 + T(0.5), T{0}, T{1});
};

Status Elu(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 1);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return x > 0 ? x : static_cast<T>(alpha * std::expm1(x));
  });
}
Status Celu(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 1);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    if (x != x) return x;
    return std::max(T{0}, x) + std::min(T{0}, static_cast<T>(alpha * std::expm1(x / alpha)));
  });
}
Status Selu(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 1.67326319217681884765625f);
  const float gamma = c.node.Float("gamma", 1.05070102214813232421875f);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return static_cast<T>(gamma * (x > 0 ? x : static_cast<T>(alpha * std::expm1(x))));
  });
}
Status LeakyRelu(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 0.01f);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return x < 0 ? static_cast<T>(alpha) * x : x;
  });
}
Status ThresholdedRelu(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 1);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return x > static_cast<T>(alpha) ? x : T{0};
  });
}
Status HardSigmoid(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 0.2f), beta = c.node.Float("beta", 0.5f);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return std::clamp(static_cast<T>(alpha) * x + static_cast<T>(beta), T{0}, T{1});
  });
}
Status Shrink(KernelContext& c) {
  const float bias = c.node.Float("bias", 0), lambd = c.node.Float("lambd", 0.5f);
  return Map(c, NumberTypes{}, [=](auto x) {
    using T = decltype(x);
    const double v = static_cast<double>(x);
    return ConvertTo<T>(v < -lambd ? v + bias : v > lambd ? v - bias : 0);
  });
}
Status Gelu(KernelContext& c) {
  if (c.node.Text("approximate", "none") == "tanh")
    return Map(c, FloatTypes{}, [](auto x) {
      using T = decltype(x);
      return T(0.5) * x * (1 + std::tanh(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)));
    });
  return Map(c, FloatTypes{}, [](auto x) {
    using T = decltype(x);
    return T(0.5) * x * (1 + std::erf(x * T(0.7071067811865476)));
  });
}
Status Swish(KernelContext& c) {
  const float alpha = c.node.Float("alpha", 1);
  return Map(c, FloatTypes{}, [=](auto x) {
    using T = decltype(x);
    return x / (1 + std::exp(-static_cast<T>(alpha) * x));
  });
}

Status InferClip(InferContext& c) {
  for (size_t i = 1; i < 3; ++i) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, i));
    if (c.has(i) && c.elements(i) != 1) return Error::Invalid("its bounds must be scalars");
  }
  return InferSame(c);
}
Status Clip(KernelContext& c) {
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    using W = Compute<T>;
    W low = std::numeric_limits<W>::lowest(), high = std::numeric_limits<W>::max();
    if constexpr (!std::is_integral_v<W>) {
      low = -std::numeric_limits<W>::infinity();
      high = std::numeric_limits<W>::infinity();
    }
    if (c.node.opset < 11) {
      low = ConvertTo<W>(c.node.Float("min", std::numeric_limits<float>::lowest()));
      high = ConvertTo<W>(c.node.Float("max", std::numeric_limits<float>::max()));
    }
    if (c.has(1)) low = Wide(*c.in(1).as<T>());
    if (c.has(2)) high = Wide(*c.in(2).as<T>());
    MapElements(c.pool, c.in(0).as<T>(), c.out(0).as<T>(), c.elements(0), [=](T v) {
      return static_cast<T>(Smaller(Larger(Wide(v), low), high));  // NaN if x or a bound is
    });
  });
  return {};
}

Status Not(KernelContext& c) {
  MapElements(c.pool, c.in(0).as<bool>(), c.out(0).as<bool>(), c.elements(0), [](bool x) { return !x; });
  return {};
}
Status BitwiseNot(KernelContext& c) {
  DispatchOr(c.dtype(0), IntegerTypes{}, [&]<class T>() {
    MapElements(c.pool, c.in(0).as<T>(), c.out(0).as<T>(), c.elements(0),
                [](T x) { return static_cast<T>(~x); });
  });
  return {};
}

Status InferBool(InferContext& c) {
  return c.Set(0, DType::kBool, c.shape(0));
}
Status IsNan(KernelContext& c) {
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    MapElements(c.pool, c.in(0).as<T>(), c.out(0).as<bool>(), c.elements(0),
                [](T x) { return std::isnan(Wide(x)); });
  });
  return {};
}
Status IsInf(KernelContext& c) {
  const bool negative = c.node.Int("detect_negative", 1), positive = c.node.Int("detect_positive", 1);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    MapElements(c.pool, c.in(0).as<T>(), c.out(0).as<bool>(), c.elements(0), [=](T v) {
      const auto x = Wide(v);
      return std::isinf(x) && (x > 0 ? positive : negative);
    });
  });
  return {};
}

// In inference a dropout is its input; a mask, if it is wanted, keeps everything.
Status InferDropout(InferContext& c) {
  if (c.known(2) && ReadScalar(c.in(2)) != 0 && c.has(1) && ReadScalar(c.in(1)) != 0)
    return Error::Unsupported("training_mode is set; export the network for inference");
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), c.shape(0)));
  return c.Set(1, c.node.opset < 10 ? c.dtype(0) : DType::kBool, c.shape(0));
}
Status Dropout(KernelContext& c) {
  DispatchSize(c.dtype(0), [&]<class T>() { std::copy_n(c.in(0).as<T>(), c.elements(0), c.out(0).as<T>()); });
  if (!c.wants(1)) return {};
  DispatchOr(c.out(1).dtype, PlainTypes{},
             [&]<class T>() { std::fill_n(c.out(1).as<T>(), c.elements(0), static_cast<T>(1)); });
  return {};
}

constexpr unsigned kI = Operator::kInPlace;
constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"Abs", 6, kOne, kOne, kNumbers, InferSame, NumberMap<kAbs>, kI},
    {"Acos", 7, kOne, kOne, kFloats, InferSame, FloatMap<kAcos>, kI},
    {"Acosh", 9, kOne, kOne, kFloats, InferSame, FloatMap<kAcosh>, kI},
    {"Asin", 7, kOne, kOne, kFloats, InferSame, FloatMap<kAsin>, kI},
    {"Asinh", 9, kOne, kOne, kFloats, InferSame, FloatMap<kAsinh>, kI},
    {"Atan", 7, kOne, kOne, kFloats, InferSame, FloatMap<kAtan>, kI},
    {"Atanh", 9, kOne, kOne, kFloats, InferSame, FloatMap<kAtanh>, kI},
    {"BitwiseNot", 18, kOne, kOne, kIntegers, InferSame, BitwiseNot, kI},
    {"Ceil", 6, kOne, kOne, kFloats, InferSame, FloatMap<kCeil>, kI},
    {"Celu", 12, kOne, kOne, kFloats, InferSame, Celu, kI},
    {"Clip", 6, {1, 3}, kOne, kNumbers, InferClip, Clip, kI, nullptr, kFastUnary},
    {"Cos", 7, kOne, kOne, kFloats, InferSame, FloatMap<kCos>, kI},
    {"Cosh", 9, kOne, kOne, kFloats, InferSame, FloatMap<kCosh>, kI},
    {"Dropout", 7, {1, 3}, {1, 2}, kFloats, InferDropout, Dropout, kI},
    {"Elu", 6, kOne, kOne, kFloats, InferSame, Elu, kI},
    {"Erf", 9, kOne, kOne, kFloats, InferSame, FloatMap<kErf>, kI, nullptr, kFastUnary},
    {"Exp", 6, kOne, kOne, kFloats, InferSame, FloatMap<kExp>, kI, nullptr, kFastUnary},
    {"Floor", 6, kOne, kOne, kFloats, InferSame, FloatMap<kFloor>, kI},
    {"Gelu", 20, kOne, kOne, kFloats, InferSame, Gelu, kI, nullptr, kFastUnary},
    {"HardSigmoid", 6, kOne, kOne, kFloats, InferSame, HardSigmoid, kI, nullptr, kFastUnary},
    {"HardSwish", 14, kOne, kOne, kFloats, InferSame, FloatMap<kHardSwish>, kI, nullptr, kFastUnary},
    {"IsInf", 10, kOne, kOne, kFloats, InferBool, IsInf},
    {"IsNaN", 9, kOne, kOne, kFloats, InferBool, IsNan},
    {"LeakyRelu", 6, kOne, kOne, kFloats, InferSame, LeakyRelu, kI, nullptr, kFastUnary},
    {"Log", 6, kOne, kOne, kFloats, InferSame, FloatMap<kLog>, kI},
    {"Mish", 18, kOne, kOne, kFloats, InferSame, FloatMap<kMish>, kI},
    {"Neg", 6, kOne, kOne, kFloats | kSigned, InferSame, NumberMap<kNeg>, kI},
    {"Not", 1, kOne, kOne, kBools, InferSame, Not, kI},
    {"Reciprocal", 6, kOne, kOne, kFloats, InferSame, FloatMap<kReciprocal>, kI},
    {"Relu", 6, kOne, kOne, kFloats | kSigned, InferSame, NumberMap<kRelu>, kI, nullptr, kFastUnary},
    {"Round", 11, kOne, kOne, kFloats, InferSame, FloatMap<kRound>, kI},
    {"Selu", 6, kOne, kOne, kFloats, InferSame, Selu, kI},
    {"Shrink", 9, kOne, kOne, kNumbers, InferSame, Shrink, kI},
    {"Sigmoid", 6, kOne, kOne, kFloats, InferSame, FloatMap<kSigmoid>, kI, nullptr, kFastUnary},
    {"Sign", 9, kOne, kOne, kNumbers, InferSame, NumberMap<kSign>, kI},
    {"Sin", 7, kOne, kOne, kFloats, InferSame, FloatMap<kSin>, kI},
    {"Sinh", 9, kOne, kOne, kFloats, InferSame, FloatMap<kSinh>, kI},
    {"Softplus", 1, kOne, kOne, kFloats, InferSame, FloatMap<kSoftplus>, kI},
    {"Softsign", 1, kOne, kOne, kFloats, InferSame, FloatMap<kSoftsign>, kI},
    {"Sqrt", 6, kOne, kOne, kFloats, InferSame, FloatMap<kSqrt>, kI},
    {"Swish", 24, kOne, kOne, kFloats, InferSame, Swish, kI, nullptr, kFastUnary},
    {"Tan", 7, kOne, kOne, kFloats, InferSame, FloatMap<kTan>, kI},
    {"Tanh", 6, kOne, kOne, kFloats, InferSame, FloatMap<kTanh>, kI, nullptr, kFastUnary},
    {"ThresholdedRelu", 10, kOne, kOne, kFloats, InferSame, ThresholdedRelu, kI},
};

}  // namespace

std::span<const Operator> UnaryOperators() {
  return kRows;
}

}  // namespace celer::graph
