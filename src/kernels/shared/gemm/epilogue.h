// The epilogue of a product: what happens to an accumulator before it is stored. Plain types: files with an
// ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

// An elementwise activation.
struct Pointwise {
  enum class Kind : uint8_t {
    kNone,
    kClip,         // min(max(x, a), b): Relu is {kClip, 0, infinity}, Relu6 {kClip, 0, 6}
    kLeakyRelu,    // x < 0 ? a x : x
    kSigmoid,      // 1 / (1 + e^-x)
    kSilu,         // x sigmoid(x)
    kTanh,         //
    kHardSigmoid,  // min(max(a x + b, 0), 1)
    kHardSwish,    // x min(max(x / 6 + 1/2, 0), 1)
    kGelu,         // x / 2 (1 + erf(x / sqrt 2))
    kGeluTanh,     // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    kErf,          //
    kExp,          //
  };
  Kind kind = Kind::kNone;
  float a = 0, b = 0;

  static Pointwise Relu() { return {Kind::kClip, 0, __builtin_inff()}; }
  static Pointwise Clip(float low, float high) { return {Kind::kClip, low, high}; }
};

// f(sum + bias + add), or f(sum + bias) + add if add_last.
// `T` is the type of the images or matrices: float or F16. Biases are floats either way.
template <class T>
struct BasicEpilogue {
  const float* row_bias = nullptr;  // [m], or none
  const float* col_bias = nullptr;  // [n], or none
  const T* add = nullptr;           // [m, add_stride], or none; may be the output itself
  int64_t add_stride = 0;
  bool add_last = false;
  Pointwise f = {};
};
using Epilogue = BasicEpilogue<float>;

}  // namespace celer
