#pragma once

#include "formats/float16.h"
#include "kernels/shared/f16.h"
#include "kernels/shared/gemm/epilogue.h"

namespace celer::reference {

double Apply(const Pointwise& f, double x);

// A number of either type, to compute with, and back.
inline double Get(float x) {
  return static_cast<double>(x);
}
inline double Get(F16 x) {
  return static_cast<double>(F16ToFloat(x.bits));
}
inline void Put(float& to, double x) {
  to = static_cast<float>(x);
}
inline void Put(F16& to, double x) {
  to.bits = FloatToF16(static_cast<float>(x));
}

}  // namespace celer::reference
