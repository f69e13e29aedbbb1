// The functions of epilogue.h for one vector of any width; see simd.h for why all of it is in an unnamed
// namespace.
#pragma once

#include "kernels/shared/activation/activation_lanes.h"
#include "kernels/shared/gemm/epilogue.h"
#include "kernels/shared/lanes.h"
#include "kernels/shared/tanh_lanes.h"

namespace celer {
namespace {

CELER_INLINE Simd::F ClampTo(Simd::F x, Simd::F low, Simd::F high) {
  return Simd::Min(high, Simd::Max(low, x));
}

// 1 + e^-x of kN vectors, interleaved step by step for all of them: one alone would be bound by latency.
// Beyond +-87.3 it saturates: what is divided by it is then as good as 0, or as it was. NaN may become a
// number.
template <int kN>
CELER_INLINE void SigmoidDivisor(const Simd::F (&x)[kN], Simd::F (&out)[kN]) {
  using S = Simd;
  const S::F low = S::Set(-87.3f), high = S::Set(87.3f), magic = S::Set(12582912.0f), one = S::Set(1.0f);
  S::F n[kN], r[kN], p[kN];
  // As in ExpInPlace: -x = n ln 2 + r, with -n in `p` and n in the low bits of `n`.
  for (int i = 0; i < kN; ++i) r[i] = ClampTo(x[i], low, high);
  for (int i = 0; i < kN; ++i) n[i] = S::Fnma(r[i], S::Set(1.44269504f), magic);
  for (int i = 0; i < kN; ++i) p[i] = S::Sub(magic, n[i]);
  for (int i = 0; i < kN; ++i) r[i] = S::Sub(S::Mul(p[i], S::Set(0.693145752f)), r[i]);
  for (int i = 0; i < kN; ++i) r[i] = S::Fma(p[i], S::Set(1.42860682e-6f), r[i]);
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(S::Set(1.392619102e-3f), r[i], S::Set(8.363185450e-3f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(4.166655615e-2f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(1.666657627e-1f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(0.5f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], one);
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], one);
  for (int i = 0; i < kN; ++i) out[i] = S::Add(one, S::ScaleByLowBits(p[i], n[i]));
}

struct SiluLanes {
  template <int kN>
  CELER_INLINE void operator()(Simd::F (&x)[kN]) const {
    Simd::F d[kN];
    SigmoidDivisor(x, d);
    for (int i = 0; i < kN; ++i) x[i] = Simd::Div(x[i], d[i]);
  }
};
struct SigmoidLanes {
  template <int kN>
  CELER_INLINE void operator()(Simd::F (&x)[kN]) const {
    using S = Simd;
    S::F d[kN];
    SigmoidDivisor(x, d);
    for (int i = 0; i < kN; ++i) {
      // Adds nothing, unless it is NaN.
      const S::F nan = S::Mul(ClampTo(x[i], S::Set(-1.0f), S::Set(1.0f)), S::Set(0.0f));
      x[i] = S::Add(S::Div(S::Set(1.0f), d[i]), nan);
    }
  }
};

// Gelu of activation_lanes.h, the same numbers, for kN vectors step by step.
struct GeluLanes {
  template <int kN>
  CELER_INLINE void operator()(Simd::F (&x)[kN]) const {
    using S = Simd;
    S::F t[kN], p[kN], e[kN];
    for (int i = 0; i < kN; ++i) t[i] = S::Mul(S::Abs(x[i]), S::Set(0.70710678f));
    for (int i = 0; i < kN; ++i) t[i] = S::Div(S::Set(1.0f), S::Fma(t[i], S::Set(0.3275911f), S::Set(1.0f)));
    for (int i = 0; i < kN; ++i) e[i] = S::Mul(S::Mul(x[i], x[i]), S::Set(-0.5f));
    ExpNonPositive(e);
    for (int i = 0; i < kN; ++i) p[i] = S::Fma(S::Set(1.061405429f), t[i], S::Set(-1.453152027f));
    for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], t[i], S::Set(1.421413741f));
    for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], t[i], S::Set(-0.284496736f));
    for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], t[i], S::Set(0.254829592f));
    for (int i = 0; i < kN; ++i) e[i] = S::Mul(S::Mul(p[i], t[i]), e[i]);
    for (int i = 0; i < kN; ++i) {
      const S::F twice = S::IfLess(x[i], S::Set(0.0f), e[i], S::Sub(S::Set(2.0f), e[i]));
      x[i] = S::Mul(S::Mul(S::Set(0.5f), x[i]), twice);
    }
  }
};

// Up to 1 as x p(x^2), interpolated likewise; beyond it 1 - erfc, with erfc as in Gelu.
struct ErfFn {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    const S::F z = S::Mul(x, x), size = S::Abs(x);
    S::F p = S::Set(-5.648057428e-4f);
    p = S::Fma(p, z, S::Set(4.921761356e-3f));
    p = S::Fma(p, z, S::Set(-2.671505356e-2f));
    p = S::Fma(p, z, S::Set(1.128031662e-1f));
    p = S::Fma(p, z, S::Set(-3.761234377e-1f));
    p = S::Fma(p, z, S::Set(1.128379126f));
    const S::F t = S::Div(S::Set(1.0f), S::Fma(size, S::Set(0.3275911f), S::Set(1.0f)));
    S::F q = S::Set(1.061405429f);
    q = S::Fma(q, t, S::Set(-1.453152027f));
    q = S::Fma(q, t, S::Set(1.421413741f));
    q = S::Fma(q, t, S::Set(-0.284496736f));
    q = S::Fma(q, t, S::Set(0.254829592f));
    const S::F erfc = S::Mul(S::Mul(q, t), Exp(S::Sub(S::Set(0.0f), z)));
    const S::F far = S::Sub(S::Set(1.0f), erfc);
    const S::F signed_far = S::IfLess(x, S::Set(0.0f), S::Sub(S::Set(0.0f), far), far);
    return S::IfLess(size, S::Set(1.0f), S::Mul(p, x), signed_far);
  }
};

struct HardSwishFn {
  static CELER_INLINE Simd::F Apply(Simd::F x) {
    using S = Simd;
    // Not x / 6 + 1/2, whose rounding would be all that is left near -3.
    const S::F gate = ClampTo(S::Add(x, S::Set(3.0f)), S::Set(0.0f), S::Set(6.0f));
    return S::Mul(S::Mul(x, S::Set(1.0f / 6)), gate);
  }
};

// A function of one vector, for several of them.
template <class One>
struct EachOf {
  One one;
  template <class V, int kN>
  CELER_INLINE void operator()(V (&x)[kN]) const {
    for (int i = 0; i < kN; ++i) x[i] = one(x[i]);
  }
};
template <class One>
EachOf(One) -> EachOf<One>;

#if defined(CELER_LANES_F16)
CELER_INLINE Lanes::F ClampTo(Lanes::F x, Lanes::F low, Lanes::F high) {
  return Lanes::Min(high, Lanes::Max(low, x));
}

// A function of vectors of floats, for vectors of halves.
template <class Apply>
struct InFloats {
  Apply apply;
  template <int kN>
  CELER_INLINE void operator()(Lanes::F (&x)[kN]) const {
    Simd::F wide[2 * kN];
    for (int i = 0; i < kN; ++i) wide[2 * i] = LowOf(x[i]), wide[2 * i + 1] = HighOf(x[i]);
    apply(wide);
    for (int i = 0; i < kN; ++i) x[i] = Narrow(wide[2 * i], wide[2 * i + 1]);
  }
};

// 1 / (1 + e^-x) of kN vectors in f16, within about 2^-10: e^-x is a power of two times a polynomial, whose
// error is below 2^-13, and the quotient an estimate of 8 bits that one Newton step doubles. Beyond -11 it
// stays 2^-16.
template <int kN>
CELER_INLINE void HalfSigmoid(const Lanes::F (&x)[kN], Lanes::F (&out)[kN]) {
  using L = Lanes;
  const L::F low = L::Set(-14.0f), high = L::Set(15.5f), one = L::Set(1.0f);
  L::F t[kN], n[kN], p[kN];
  for (int i = 0; i < kN; ++i) t[i] = ClampTo(L::Mul(x[i], L::Set(-1.44269504f)), low, high);
  for (int i = 0; i < kN; ++i) n[i] = vrndnq_f16(t[i]);
  for (int i = 0; i < kN; ++i) t[i] = L::Sub(t[i], n[i]);
  for (int i = 0; i < kN; ++i) p[i] = L::Fma(t[i], L::Set(0.0558263180f), L::Set(0.2401397110f));
  for (int i = 0; i < kN; ++i) p[i] = L::Fma(p[i], t[i], L::Set(0.6931531400f));
  for (int i = 0; i < kN; ++i) p[i] = L::Fma(p[i], t[i], one);
  for (int i = 0; i < kN; ++i)
    p[i] =
        vreinterpretq_f16_s16(vaddq_s16(vreinterpretq_s16_f16(p[i]), vshlq_n_s16(vcvtq_s16_f16(n[i]), 10)));
  for (int i = 0; i < kN; ++i) p[i] = L::Add(p[i], one);
  for (int i = 0; i < kN; ++i) t[i] = vrecpeq_f16(p[i]);
  for (int i = 0; i < kN; ++i) out[i] = L::Mul(t[i], vrecpsq_f16(p[i], t[i]));
}
struct HalfSigmoidLanes {
  template <int kN>
  CELER_INLINE void operator()(Lanes::F (&x)[kN]) const {
    HalfSigmoid(x, x);
  }
};
struct HalfSiluLanes {
  template <int kN>
  CELER_INLINE void operator()(Lanes::F (&x)[kN]) const {
    Lanes::F s[kN];
    HalfSigmoid(x, s);
    for (int i = 0; i < kN; ++i) x[i] = Lanes::Mul(x[i], s[i]);
  }
};
#endif

// Calls use(apply), where apply(x) is the function of an array of vectors, in place: the choice is made once
// and not per element.
template <class Use>
CELER_INLINE void WithPointwise(const Pointwise& f, Use use) {
  using S = Simd;
  using Kind = Pointwise::Kind;
  const S::F a = S::Set(f.a), b = S::Set(f.b);
  switch (f.kind) {
    case Kind::kNone:
      return use(EachOf{[](S::F x) { return x; }});
    case Kind::kClip:
      return use(EachOf{[=](S::F x) { return ClampTo(x, a, b); }});
    case Kind::kLeakyRelu:
      return use(EachOf{[=](S::F x) { return S::IfLess(x, S::Set(0.0f), S::Mul(x, a), x); }});
    case Kind::kSigmoid:
      return use(SigmoidLanes{});
    case Kind::kSilu:
      return use(SiluLanes{});
    case Kind::kTanh:
      return use(EachOf{[](S::F x) { return TanhFn::Apply(x); }});
    case Kind::kHardSigmoid:
      return use(EachOf{[=](S::F x) { return ClampTo(S::Fma(x, a, b), S::Set(0.0f), S::Set(1.0f)); }});
    case Kind::kHardSwish:
      return use(EachOf{[](S::F x) { return HardSwishFn::Apply(x); }});
    case Kind::kGelu:
      return use(GeluLanes{});
    case Kind::kGeluTanh:
      return use(EachOf{[](S::F x) { return GeluTanh::Apply(x); }});
    case Kind::kErf:
      return use(EachOf{[](S::F x) { return ErfFn::Apply(x); }});
    case Kind::kExp:
      return use(EachOf{[](S::F x) { return Exp(x); }});
  }
}

// The same for vectors of Real. In f16 the sigmoid and SiLU have forms of their own; other functions are
// computed in f32.
template <class Use>
CELER_INLINE void WithPointwiseLanes(const Pointwise& f, Use use) {
#if defined(CELER_LANES_F16)
  using L = Lanes;
  using Kind = Pointwise::Kind;
  const L::F a = L::Set(f.a), b = L::Set(f.b);
  if (f.kind == Kind::kNone) return use(EachOf{[](L::F x) { return x; }});
  if (f.kind == Kind::kClip) return use(EachOf{[=](L::F x) { return ClampTo(x, a, b); }});
  if (f.kind == Kind::kLeakyRelu)
    return use(EachOf{[=](L::F x) { return L::IfLess(x, L::Set(0.0f), L::Mul(x, a), x); }});
  if (f.kind == Kind::kSigmoid) return use(HalfSigmoidLanes{});
  if (f.kind == Kind::kSilu) return use(HalfSiluLanes{});
  WithPointwise(f, [&](auto apply) { use(InFloats<decltype(apply)>{apply}); });
#else
  WithPointwise(f, use);
#endif
}

// out[i] = f(x[i] + add[i]), or f(x[i]) + add[i]; `add` may be none, and any of them another.
CELER_INLINE void FinishRow(const Pointwise& f, const Real* x, const Real* add, bool add_last, Real* out,
                            int64_t n) {
  using S = Lanes;
  constexpr int kL = S::kLanes;
  WithPointwiseLanes(f, [&](auto apply) {
    int64_t i = 0;
    for (; i + 4 * kL <= n; i += 4 * kL) {
      S::F v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        v[j] = S::Load(x + i + j * kL);
        if (add && !add_last) v[j] = S::Add(v[j], S::Load(add + i + j * kL));
      }
      apply(v);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        if (add && add_last) v[j] = S::Add(v[j], S::Load(add + i + j * kL));
        S::Store(out + i + j * kL, v[j]);
      }
    }
    for (; i + kL <= n; i += kL) {
      S::F v[1] = {S::Load(x + i)};
      if (add && !add_last) v[0] = S::Add(v[0], S::Load(add + i));
      apply(v);
      if (add && add_last) v[0] = S::Add(v[0], S::Load(add + i));
      S::Store(out + i, v[0]);
    }
    if (i == n) return;
    const int64_t some = n - i;
    S::F v[1] = {LoadSome(x + i, some)};
    if (add && !add_last) v[0] = S::Add(v[0], LoadSome(add + i, some));
    apply(v);
    if (add && add_last) v[0] = S::Add(v[0], LoadSome(add + i, some));
    StoreSome(out + i, v[0], some);
  });
}

}  // namespace
}  // namespace celer
