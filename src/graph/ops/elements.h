// Element types as C++ types, and the choice of a template by an element type.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/dtype.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"

namespace celer::graph {

// Stored in 16 bits, computed with as a float.
struct Half {
  uint16_t bits;
  Half() = default;
  Half(float value) : bits(FloatToF16(value)) {}  // NOLINT: implicit, so that formulas read as for float
  operator float() const { return F16ToFloat(bits); }
};
struct Brain {
  uint16_t bits;
  Brain() = default;
  Brain(float value) : bits(FloatToBf16(value)) {}  // NOLINT
  operator float() const { return Bf16ToFloat(bits); }
};

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;
template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T>;

// The type to compute with.
template <class T>
using Compute = std::conditional_t<kIsHalf<T>, float, T>;
template <class T>
Compute<T> Wide(T value) {
  return static_cast<Compute<T>>(value);
}

// Saturating conversion, where C++ leaves it undefined: NaN gives 0, and a float beyond an integer's range
// gives the nearest end.
template <class To, class From>
To ConvertTo(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (value != value) return 0;
    const double x = static_cast<double>(value);
    constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
    constexpr double high = static_cast<double>(std::numeric_limits<To>::max());
    if (x <= low) return std::numeric_limits<To>::min();
    if (x >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Integers wrap around, as they do in numpy: signed overflow is not left to the compiler.
template <class T>
using Wrap = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
template <class T>
T WrapAdd(T x, T y) {
  return static_cast<T>(static_cast<Wrap<T>>(x) + static_cast<Wrap<T>>(y));
}
template <class T>
T WrapMul(T x, T y) {
  return static_cast<T>(static_cast<Wrap<T>>(x) * static_cast<Wrap<T>>(y));
}
template <class T>
T Larger(T x, T y) {  // NaN if one is
  return x != x ? x : y != y ? y : x > y ? x : y;
}
template <class T>
T Smaller(T x, T y) {
  return x != x ? x : y != y ? y : x < y ? x : y;
}

template <class... T>
struct TypeList {};
using FloatTypes = TypeList<float, double, Half, Brain>;
using SignedTypes = TypeList<int8_t, int16_t, int32_t, int64_t>;
using IntegerTypes = TypeList<int64_t, int32_t, uint8_t, int8_t, int16_t, uint16_t, uint32_t, uint64_t>;
using NumberTypes = TypeList<float, int64_t, int32_t, double, Half, Brain, uint8_t, int8_t, int16_t, uint16_t,
                             uint32_t, uint64_t>;
using PlainTypes = TypeList<float, int64_t, int32_t, bool, double, Half, Brain, uint8_t, int8_t, int16_t,
                            uint16_t, uint32_t, uint64_t>;
// For operators that only move elements: one type per size.
using SizeTypes = TypeList<uint8_t, uint16_t, uint32_t, uint64_t>;

template <class T>
constexpr DType kDType = std::is_same_v<T, float>      ? DType::kF32
                         : std::is_same_v<T, double>   ? DType::kF64
                         : std::is_same_v<T, Half>     ? DType::kF16
                         : std::is_same_v<T, Brain>    ? DType::kBf16
                         : std::is_same_v<T, bool>     ? DType::kBool
                         : std::is_same_v<T, int8_t>   ? DType::kI8
                         : std::is_same_v<T, uint8_t>  ? DType::kU8
                         : std::is_same_v<T, int16_t>  ? DType::kI16
                         : std::is_same_v<T, uint16_t> ? DType::kU16
                         : std::is_same_v<T, int32_t>  ? DType::kI32
                         : std::is_same_v<T, uint32_t> ? DType::kU32
                         : std::is_same_v<T, int64_t>  ? DType::kI64
                                                       : DType::kU64;

// Calls fn.operator()<T>() for the type of the list that `dtype` names; false when none does.
template <class Fn, class... T>
bool DispatchOr(DType dtype, TypeList<T...>, const Fn& fn) {
  return ((dtype == kDType<T> ? (fn.template operator()<T>(), true) : false) || ...);
}

// By the bytes of an element.
template <class Fn>
void DispatchSize(DType dtype, const Fn& fn) {
  switch (Info(dtype).block_bytes) {
    case 1:
      return fn.template operator()<uint8_t>();
    case 2:
      return fn.template operator()<uint16_t>();
    case 4:
      return fn.template operator()<uint32_t>();
    default:
      return fn.template operator()<uint64_t>();
  }
}

}  // namespace celer::graph
