// The activations for one vector of any width; see simd.h for why all of it is in an unnamed namespace.
#pragma once

#include "kernels/shared/activation/activation_kind.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

struct Silu {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    return S::Div(x, S::Add(S::Set(1.0f), Exp(S::Sub(S::Set(0.0f), x))));
  }
};

// x / 2 (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    const S::F inner = S::Fma(S::Mul(x, x), S::Set(0.044715f), S::Set(1.0f));
    const S::F minus_2u = S::Mul(S::Mul(x, S::Set(-1.59576912f)), inner);
    return S::Div(x, S::Add(S::Set(1.0f), Exp(minus_2u)));
  }
};

// x / 2 erfc(-x / sqrt 2), with erfc(z) = poly(1 / (1 + 0.3275911 z)) e^(-z^2) for z >= 0, off by at most
// 1.5e-7 (Abramowitz and Stegun 7.1.26).
struct Gelu {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    const S::F z = S::Mul(S::Abs(x), S::Set(0.70710678f));
    const S::F t = S::Div(S::Set(1.0f), S::Fma(z, S::Set(0.3275911f), S::Set(1.0f)));
    S::F p = S::Set(1.061405429f);
    p = S::Fma(p, t, S::Set(-1.453152027f));
    p = S::Fma(p, t, S::Set(1.421413741f));
    p = S::Fma(p, t, S::Set(-0.284496736f));
    p = S::Fma(p, t, S::Set(0.254829592f));
    const S::F erfc = S::Mul(S::Mul(p, t), Exp(S::Mul(S::Mul(x, x), S::Set(-0.5f))));
    const S::F twice = S::IfLess(x, S::Set(0.0f), erfc, S::Sub(S::Set(2.0f), erfc));
    return S::Mul(S::Mul(S::Set(0.5f), x), twice);
  }
};

struct Relu {
  static CELER_INLINE Simd::F Apply(Simd::F x) { return Simd::Max(Simd::Set(0.0f), x); }
};

struct Relu2 {
  static CELER_INLINE Simd::F Apply(Simd::F x) { return Simd::Mul(x, Simd::Max(Simd::Set(0.0f), x)); }
};

// A gate's activation times its up.
template <class Act>
struct Product {
  CELER_INLINE Simd::F Apply(Simd::F gate, Simd::F up) const { return Simd::Mul(Act::Apply(gate), up); }
};

struct ClampedSwiglu {
  float limit;
  CELER_INLINE Simd::F Apply(Simd::F gate, Simd::F up) const {
    using S = Simd;
    // Min and Max give their second operand if one is NaN, or NaN.
    const S::F most = S::Set(limit), one = S::Set(1.0f);
    const S::F g = S::Min(most, gate), u = S::Min(most, S::Max(S::Set(-limit), up));
    return S::Mul(S::Div(g, S::Add(one, Exp(S::Mul(g, S::Set(-1.702f))))), S::Add(u, one));
  }
};

template <class Pair>
CELER_INLINE void ActivatePairs(const Pair& pair, const float* gate, const float* up, float* out, int64_t n) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  int64_t i = 0;
  // Two at a time: one division's latency hides behind the other's.
  for (; i + 2 * kL <= n; i += 2 * kL) {
    const S::F a = pair.Apply(S::Load(gate + i), S::Load(up + i));
    const S::F b = pair.Apply(S::Load(gate + i + kL), S::Load(up + i + kL));
    S::Store(out + i, a);
    S::Store(out + i + kL, b);
  }
  for (; i < n; i += kL) {
    const int64_t some = n - i < kL ? n - i : kL;
    StoreSome(out + i, pair.Apply(LoadSome(gate + i, some), LoadSome(up + i, some)), some);
  }
}

CELER_INLINE void ActivateMulLanes(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                                   float limit) {
  if (limit > 0) return ActivatePairs(ClampedSwiglu{limit}, gate, up, out, n);
  switch (kind) {
    case Activation::kSilu:
      return ActivatePairs(Product<Silu>{}, gate, up, out, n);
    case Activation::kGelu:
      return ActivatePairs(Product<Gelu>{}, gate, up, out, n);
    case Activation::kGeluTanh:
      return ActivatePairs(Product<GeluTanh>{}, gate, up, out, n);
    case Activation::kRelu:
      return ActivatePairs(Product<Relu>{}, gate, up, out, n);
    case Activation::kRelu2:
      return ActivatePairs(Product<Relu2>{}, gate, up, out, n);
  }
}

}  // namespace
}  // namespace celer
