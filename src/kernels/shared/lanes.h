// Real, the element type of matrices and images, and Lanes, vectors of it: f32, as in simd.h, or f16 in a
// file that defines CELER_LANES_F16 before its includes and is built with the flags for it (_arm_fp16).
// Functions such as e^x are computed in f32, the vectors of Simd, in both. See simd.h for why all of it is in
// an unnamed namespace.
#pragma once

#include "kernels/shared/f16.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

#if defined(CELER_LANES_F16)

using Real = F16;

struct Lanes {
  static constexpr int kLanes = 8;
  using F = float16x8_t;
  static CELER_INLINE F Load(const F16* p) { return vreinterpretq_f16_u16(vld1q_u16(&p->bits)); }
  static CELER_INLINE void Store(F16* p, F v) { vst1q_u16(&p->bits, vreinterpretq_u16_f16(v)); }
  static CELER_INLINE F Set(float v) { return vdupq_n_f16(static_cast<float16_t>(v)); }
  static CELER_INLINE F Set(F16 v) { return vreinterpretq_f16_u16(vdupq_n_u16(v.bits)); }
  static CELER_INLINE F Add(F a, F b) { return vaddq_f16(a, b); }
  static CELER_INLINE F Sub(F a, F b) { return vsubq_f16(a, b); }
  static CELER_INLINE F Mul(F a, F b) { return vmulq_f16(a, b); }
  static CELER_INLINE F Max(F a, F b) { return vmaxq_f16(a, b); }
  static CELER_INLINE F Min(F a, F b) { return vminq_f16(a, b); }
  static CELER_INLINE F Fma(F a, F b, F c) { return vfmaq_f16(c, a, b); }
  static CELER_INLINE F Fnma(F a, F b, F c) { return vfmsq_f16(c, a, b); }
  static CELER_INLINE F IfLess(F a, F b, F yes, F no) { return vbslq_f16(vcltq_f16(a, b), yes, no); }
};

CELER_INLINE Lanes::F LoadSome(const F16* p, int64_t n) {
  F16 lanes[Lanes::kLanes] = {};
  CopySome<Lanes::kLanes>(p, lanes, n);
  return Lanes::Load(lanes);
}
CELER_INLINE void StoreSome(F16* p, Lanes::F v, int64_t n) {
  F16 lanes[Lanes::kLanes];
  Lanes::Store(lanes, v);
  CopySome<Lanes::kLanes, F16>(lanes, p, n);
}

CELER_INLINE Lanes::F Narrow(Simd::F low, Simd::F high) {
  return vcvt_high_f16_f32(vcvt_f16_f32(low), high);
}
CELER_INLINE Simd::F LowOf(Lanes::F v) {
  return vcvt_f32_f16(vget_low_f16(v));
}
CELER_INLINE Simd::F HighOf(Lanes::F v) {
  return vcvt_high_f32_f16(v);
}

// kLanes floats as a vector of Real.
CELER_INLINE Lanes::F FromFloats(const float* p) {
  return Narrow(Simd::Load(p), Simd::Load(p + 4));
}

#else

using Real = float;
using Lanes = Simd;

CELER_INLINE Lanes::F FromFloats(const float* p) {
  return Lanes::Load(p);
}

#endif

constexpr int64_t kLineReals = 64 / sizeof(Real);  // in a line of the cache

}  // namespace
}  // namespace celer
