// One vector register of floats, as wide as the flags of the including file allow: NEON on aarch64, AVX-512
// or AVX2 in the files with such a suffix, four lanes of the compiler's own vector type elsewhere. Everything
// sits in an unnamed namespace, so each file keeps its own copy, built with its own flags; templates
// instantiated with Simd are safe in ISA files for the same reason.
//
// Fma(a, b, c) is a * b + c: one rounding wherever the instruction exists. Sums over lanes have one fixed
// order.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#define CELER_INLINE inline __attribute__((always_inline))

namespace celer {
namespace {

#if defined(__aarch64__)

struct Simd {
  static constexpr int kLanes = 4;
  using F = float32x4_t;
  static CELER_INLINE F Load(const float* p) { return vld1q_f32(p); }
  static CELER_INLINE void Store(float* p, F v) { vst1q_f32(p, v); }
  static CELER_INLINE F Set(float v) { return vdupq_n_f32(v); }
  static CELER_INLINE F Add(F a, F b) { return vaddq_f32(a, b); }
  static CELER_INLINE F Sub(F a, F b) { return vsubq_f32(a, b); }
  static CELER_INLINE F Mul(F a, F b) { return vmulq_f32(a, b); }
  static CELER_INLINE F Div(F a, F b) { return vdivq_f32(a, b); }
  static CELER_INLINE F Max(F a, F b) { return vmaxq_f32(a, b); }
  static CELER_INLINE F Min(F a, F b) { return vminq_f32(a, b); }
  static CELER_INLINE F Abs(F a) { return vabsq_f32(a); }
  static CELER_INLINE F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static CELER_INLINE F Fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
  // a < b ? yes : no, lane by lane
  static CELER_INLINE F IfLess(F a, F b, F yes, F no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
  // v * 2^n, where n is the integer that adding 1.5 * 2^23 has left in the low bits of t
  static CELER_INLINE F ScaleByLowBits(F v, F t) {
    return vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(v), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
  }
  static CELER_INLINE float Sum(F v) { return vaddvq_f32(v); }
  static CELER_INLINE float MaxOf(F v) { return vmaxvq_f32(v); }
};

#elif defined(__AVX512F__)

struct Simd {
  static constexpr int kLanes = 16;
  using F = __m512;
  static CELER_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static CELER_INLINE void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static CELER_INLINE F Set(float v) { return _mm512_set1_ps(v); }
  static CELER_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static CELER_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static CELER_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static CELER_INLINE F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static CELER_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static CELER_INLINE F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static CELER_INLINE F Abs(F a) { return _mm512_abs_ps(a); }
  static CELER_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static CELER_INLINE F Fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static CELER_INLINE F IfLess(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static CELER_INLINE F ScaleByLowBits(F v, F t) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(v), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
  }
  static CELER_INLINE float Sum(F v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static CELER_INLINE float MaxOf(F v) { return _mm512_reduce_max_ps(v); }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct Simd {
  static constexpr int kLanes = 8;
  using F = __m256;
  static CELER_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static CELER_INLINE void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static CELER_INLINE F Set(float v) { return _mm256_set1_ps(v); }
  static CELER_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static CELER_INLINE F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static CELER_INLINE F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static CELER_INLINE F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static CELER_INLINE F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static CELER_INLINE F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static CELER_INLINE F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static CELER_INLINE F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static CELER_INLINE F Fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static CELER_INLINE F IfLess(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static CELER_INLINE F ScaleByLowBits(F v, F t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }
  static CELER_INLINE float Sum(F v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static CELER_INLINE float MaxOf(F v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
};

#else

struct Simd {
  static constexpr int kLanes = 4;
  using F = float __attribute__((vector_size(16)));
  using I = int32_t __attribute__((vector_size(16)));
  static CELER_INLINE F Load(const float* p) {
    F v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  static CELER_INLINE void Store(float* p, F v) { memcpy(p, &v, sizeof v); }
  static CELER_INLINE F Set(float v) { return F{v, v, v, v}; }
  static CELER_INLINE F Add(F a, F b) { return a + b; }
  static CELER_INLINE F Sub(F a, F b) { return a - b; }
  static CELER_INLINE F Mul(F a, F b) { return a * b; }
  static CELER_INLINE F Div(F a, F b) { return a / b; }
  static CELER_INLINE F Max(F a, F b) { return a > b ? a : b; }
  static CELER_INLINE F Min(F a, F b) { return a < b ? a : b; }
  static CELER_INLINE F Abs(F a) { return (F)((I)a & 0x7fffffff); }
  static CELER_INLINE F Fma(F a, F b, F c) { return a * b + c; }
  static CELER_INLINE F Fnma(F a, F b, F c) { return c - a * b; }
  static CELER_INLINE F IfLess(F a, F b, F yes, F no) { return a < b ? yes : no; }
  static CELER_INLINE F ScaleByLowBits(F v, F t) { return (F)((I)v + ((I)t << 23)); }
  static CELER_INLINE float Sum(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static CELER_INLINE float MaxOf(F v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
};

#endif

// n <= kMost <= 8 numbers. Not one memcpy, whose call for so few costs as much as the work on them.
template <int kMost, class T>
CELER_INLINE void CopySome(const T* from, T* to, int64_t n) {
  if (n == kMost) {
    memcpy(to, from, kMost * sizeof(T));
    return;
  }
  if constexpr (kMost > 4)
    if (n & 4) memcpy(to, from, 4 * sizeof(T)), from += 4, to += 4;
  if (n & 2) memcpy(to, from, 2 * sizeof(T)), from += 2, to += 2;
  if (n & 1) memcpy(to, from, sizeof(T));
}

// The first n <= kLanes floats, zeros behind them; and back. Nothing behind them is touched.
#if defined(__AVX512F__)
CELER_INLINE __mmask16 FirstLanes(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
CELER_INLINE Simd::F LoadSome(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(FirstLanes(n), p);
}
CELER_INLINE void StoreSome(float* p, Simd::F v, int64_t n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v);
}
#elif defined(__AVX2__) && defined(__FMA__)
CELER_INLINE __m256i FirstLanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
CELER_INLINE Simd::F LoadSome(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, FirstLanes(n));
}
CELER_INLINE void StoreSome(float* p, Simd::F v, int64_t n) {
  _mm256_maskstore_ps(p, FirstLanes(n), v);
}
#else
CELER_INLINE Simd::F LoadSome(const float* p, int64_t n) {
  float lanes[Simd::kLanes] = {};
  CopySome<Simd::kLanes>(p, lanes, n);
  return Simd::Load(lanes);
}
CELER_INLINE void StoreSome(float* p, Simd::F v, int64_t n) {
  float lanes[Simd::kLanes];
  Simd::Store(lanes, v);
  CopySome<Simd::kLanes, float>(lanes, p, n);
}
#endif

// e^x of kN vectors, interleaved step by step for all of them: one alone would be bound by latency.
template <int kN, bool kUpper>
CELER_INLINE void ExpInPlace(Simd::F (&x)[kN]) {
  using S = Simd;
  const S::F low = S::Set(-87.3f), high = S::Set(88.7228f), magic = S::Set(12582912.0f);
  S::F t[kN], r[kN], p[kN];
  for (int i = 0; i < kN; ++i) {
    // Max and Min give their second operand if one is NaN, or NaN.
    r[i] = S::Max(low, x[i]);
    if (kUpper) r[i] = S::Min(high, r[i]);
  }
  // x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  for (int i = 0; i < kN; ++i) t[i] = S::Fma(r[i], S::Set(1.44269504f), magic);
  // ln 2 in two parts: n times the first, which has 15 bits, is exact even where Fma rounds twice.
  for (int i = 0; i < kN; ++i) r[i] = S::Fnma(S::Sub(t[i], magic), S::Set(0.693145752f), r[i]);
  for (int i = 0; i < kN; ++i) r[i] = S::Fnma(S::Sub(t[i], magic), S::Set(1.42860682e-6f), r[i]);
  // (e^r - 1 - r) / r^2, interpolated at the Chebyshev nodes: e^r is off by less than 1.1e-8 of itself.
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(S::Set(1.392619102e-3f), r[i], S::Set(8.363185450e-3f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(4.166655615e-2f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(1.666657627e-1f));
  for (int i = 0; i < kN; ++i) p[i] = S::Fma(p[i], r[i], S::Set(0.5f));
  for (int i = 0; i < kN; ++i) p[i] = S::Add(S::Fma(S::Mul(r[i], r[i]), p[i], r[i]), S::Set(1.0f));
  for (int i = 0; i < kN; ++i) {
    // Adds nothing, unless it is NaN, whose low bits would have made it some number.
    S::F e = S::Fma(p[i], S::Set(0.0f), S::ScaleByLowBits(p[i], t[i]));
    if (kUpper) e = S::IfLess(high, x[i], S::Set(__builtin_inff()), e);
    x[i] = S::IfLess(x[i], low, S::Set(0.0f), e);
  }
}

// e^x within 2 ulp. 0 below -87.3, where the result would no longer be a normal number; infinity
// above 88.7228; NaN stays NaN.
CELER_INLINE Simd::F Exp(Simd::F x) {
  Simd::F v[1] = {x};
  ExpInPlace<1, true>(v);
  return v[0];
}
// The same for x <= 0, bit for bit, a little faster, and for kN vectors.
template <int kN>
CELER_INLINE void ExpNonPositive(Simd::F (&x)[kN]) {
  ExpInPlace<kN, false>(x);
}
// The same function of one number.
CELER_INLINE float Exp1(float x) {
  float lanes[Simd::kLanes];
  Simd::Store(lanes, Exp(Simd::Set(x)));
  return lanes[0];
}

}  // namespace
}  // namespace celer
