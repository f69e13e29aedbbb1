#include "graph/ops/quant/small_types.h"

#include <array>
#include <cmath>
#include <limits>

#include "graph/ops/elements.h"

namespace celer::graph {
namespace {

// Minifloats of a sign, an exponent and a mantissa. Kind says what the codes at the end mean.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  enum Kind : uint8_t { kIeee, kFn, kFnuz, kFinite } kind;
  int largest;  // the code of the largest finite number
  int sign;     // the bit
};

constexpr SmallFloat kE4M3{4, 3, 7, SmallFloat::kFn, 0x7e, 0x80};
constexpr SmallFloat kE4M3Fnuz{4, 3, 8, SmallFloat::kFnuz, 0x7f, 0x80};
constexpr SmallFloat kE5M2{5, 2, 15, SmallFloat::kIeee, 0x7b, 0x80};
constexpr SmallFloat kE5M2Fnuz{5, 2, 16, SmallFloat::kFnuz, 0x7f, 0x80};
constexpr SmallFloat kE2M1{2, 1, 1, SmallFloat::kFinite, 0x7, 0x8};

const SmallFloat* Format(DType dtype) {
  switch (dtype) {
    case DType::kFp8E4M3:
      return &kE4M3;
    case DType::kFp8E4M3Fnuz:
      return &kE4M3Fnuz;
    case DType::kFp8E5M2:
      return &kE5M2;
    case DType::kFp8E5M2Fnuz:
      return &kE5M2Fnuz;
    case DType::kFp4E2M1:
      return &kE2M1;
    default:
      return nullptr;
  }
}

float Magnitude(const SmallFloat& f, int code) {
  const int mantissa = code & ((1 << f.mantissa_bits) - 1), exponent = code >> f.mantissa_bits;
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1 + fraction, exponent - f.bias);
}

float Decode(const SmallFloat& f, int bits) {
  const int code = bits & (f.sign - 1);
  const bool negative = bits & f.sign;
  if (f.kind == SmallFloat::kFnuz && negative && code == 0) return std::numeric_limits<float>::quiet_NaN();
  if (code > f.largest) {
    if (f.kind == SmallFloat::kIeee && code == f.largest + 1)
      return negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    return std::numeric_limits<float>::quiet_NaN();
  }
  return negative ? -Magnitude(f, code) : Magnitude(f, code);
}

uint8_t Encode(const SmallFloat& f, float value, bool saturate) {
  const int nan = f.kind == SmallFloat::kFnuz ? f.sign : f.kind == SmallFloat::kFinite ? f.sign : f.sign - 1;
  // fp4 has no NaN; ONNX's reference makes it -0.
  if (std::isnan(value))
    return static_cast<uint8_t>(nan | (f.kind != SmallFloat::kFnuz && std::signbit(value) ? f.sign : 0));
  const int sign = std::signbit(value) ? f.sign : 0;
  const float magnitude = std::abs(value);
  // Binary search: codes grow with the numbers they stand for; the one after the largest is where the next
  // number would be.
  int low = 0, high = f.largest + 1;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (Magnitude(f, middle) <= magnitude ? low : high) = middle;
  }
  int code = low;
  if (magnitude >= Magnitude(f, high)) {
    code = high;
  } else {
    const float below = magnitude - Magnitude(f, low), above = Magnitude(f, high) - magnitude;
    if (above < below || (above == below && (high & 1) == 0)) code = high;
  }
  if (code > f.largest) {
    if (saturate || f.kind == SmallFloat::kFinite)
      code = f.largest;
    else if (f.kind == SmallFloat::kIeee)
      code = f.largest + 1;  // infinity
    else
      return static_cast<uint8_t>(f.kind == SmallFloat::kFnuz ? nan : nan | sign);
  }
  if (f.kind == SmallFloat::kFnuz && code == 0) return 0;  // there is no -0
  return static_cast<uint8_t>(code | sign);
}

}  // namespace

float SmallToFloat(DType dtype, uint8_t bits) {
  if (const SmallFloat* const format = Format(dtype)) return Decode(*format, bits);
  if (dtype == DType::kFp8E8M0)
    return bits == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
  if (dtype == DType::kI4 || dtype == DType::kI2) return static_cast<float>(static_cast<int8_t>(bits));
  return static_cast<float>(bits);
}

uint8_t FloatToSmall(DType dtype, float value, bool saturate) {
  if (const SmallFloat* const format = Format(dtype)) return Encode(*format, value, saturate);
  if (dtype == DType::kFp8E8M0) {
    if (std::isnan(value)) return 0xff;
    if (std::isinf(value)) return saturate ? 0xfe : 0xff;
    int exponent = 0;
    const float fraction = std::frexp(std::abs(value), &exponent);  // [0.5, 1)
    const int power = value == 0 ? -127 : fraction == 0.5f ? exponent - 1 : exponent;
    const int code = power + 127;
    return static_cast<uint8_t>(code < 0 ? 0 : code > 254 ? (saturate ? 254 : 255) : code);
  }
  const int whole = std::isfinite(value) ? static_cast<int>(std::fmod(value, 256.0f)) : 0;
  switch (dtype) {
    case DType::kI4:
      return static_cast<uint8_t>(static_cast<int8_t>(static_cast<uint8_t>(whole) << 4) >> 4);
    case DType::kU4:
      return static_cast<uint8_t>(whole & 15);
    case DType::kI2:
      return static_cast<uint8_t>(static_cast<int8_t>(static_cast<uint8_t>(whole) << 6) >> 6);
    default:
      return static_cast<uint8_t>(whole & 3);
  }
}

double ReadElement(const TensorView& tensor, int64_t i) {
  double out = 0;
  const bool plain = DispatchOr(tensor.dtype, PlainTypes{},
                                [&]<class T>() { out = static_cast<double>(Wide(tensor.as<T>()[i])); });
  return plain ? out : static_cast<double>(SmallToFloat(tensor.dtype, tensor.as<uint8_t>()[i]));
}

}  // namespace celer::graph
