// tanh of one vector of any width; see simd.h for the unnamed namespace.
#pragma once

#include "kernels/shared/simd.h"

namespace celer {
namespace {

// Near 0 as x + x^3 p(x^2), interpolated at the Chebyshev nodes: 1 - 2 / (e^2x + 1) would lose the last bits
// there.
struct TanhFn {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    const S::F z = S::Mul(x, x);
    S::F p = S::Set(-6.609577450e-3f);
    p = S::Fma(p, z, S::Set(2.130894452e-2f));
    p = S::Fma(p, z, S::Set(-5.390932761e-2f));
    p = S::Fma(p, z, S::Set(1.333311287e-1f));
    p = S::Fma(p, z, S::Set(-3.333333199e-1f));
    const S::F near = S::Fma(S::Mul(p, z), x, x);
    const S::F e = Exp(S::Mul(S::Set(2.0f), x));
    const S::F far = S::Sub(S::Set(1.0f), S::Div(S::Set(2.0f), S::Add(e, S::Set(1.0f))));
    return S::IfLess(S::Abs(x), S::Set(0.55f), near, far);
  }
};

// cap * tanh(x / cap): a softcap, by `inverse` = 1 / cap. NaN stays NaN.
CELER_INLINE Simd::F SoftCap(Simd::F x, Simd::F cap, Simd::F inverse) {
  return Simd::Mul(cap, TanhFn::Apply(Simd::Mul(x, inverse)));
}

}  // namespace
}  // namespace celer
