// Rotates with vectors as wide as the flags of the including file allow.
#pragma once

#include "kernels/llm/rope/rope_layout.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

// (a, b) <- (a cos - b sin, b cos + a sin)
CELER_INLINE void RotatePair(Simd::F& a, Simd::F& b, Simd::F cos, Simd::F sin) {
  const Simd::F x = a, y = b;
  a = Simd::Fnma(y, sin, Simd::Mul(x, cos));
  b = Simd::Fma(x, sin, Simd::Mul(y, cos));
}

CELER_INLINE void RotateHalf(float* head, const float* cos, const float* sin, int64_t half) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  int64_t i = 0;
  for (; i + kL <= half; i += kL) {
    S::F a = S::Load(head + i), b = S::Load(head + half + i);
    RotatePair(a, b, S::Load(cos + i), S::Load(sin + i));
    S::Store(head + i, a);
    S::Store(head + half + i, b);
  }
  if (i < half) {
    const int64_t some = half - i;
    S::F a = LoadSome(head + i, some), b = LoadSome(head + half + i, some);
    RotatePair(a, b, LoadSome(cos + i, some), LoadSome(sin + i, some));
    StoreSome(head + i, a, some);
    StoreSome(head + half + i, b, some);
  }
}

// Pairs from `i` on, gathered lane by lane.
CELER_INLINE void RotateGathered(float* head, const float* cos, const float* sin, int64_t i, int64_t half) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  for (; i < half; i += kL) {
    const int64_t some = half - i < kL ? half - i : kL;
    float a_lanes[kL] = {}, b_lanes[kL] = {};
    for (int64_t j = 0; j < some; ++j) {
      a_lanes[j] = head[2 * (i + j)];
      b_lanes[j] = head[2 * (i + j) + 1];
    }
    S::F a = S::Load(a_lanes), b = S::Load(b_lanes);
    RotatePair(a, b, LoadSome(cos + i, some), LoadSome(sin + i, some));
    S::Store(a_lanes, a);
    S::Store(b_lanes, b);
    for (int64_t j = 0; j < some; ++j) {
      head[2 * (i + j)] = a_lanes[j];
      head[2 * (i + j) + 1] = b_lanes[j];
    }
  }
}

// Neighbours rotate where they lie: each value times its cosine, plus its neighbour times the sine, whose
// sign is the other way round for the first of a pair.
CELER_INLINE void RotateInterleaved(float* heads, int64_t count, int64_t head_dim, const float* cos,
                                    const float* sin, int64_t half) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000));
  for (; i + 8 <= half; i += 8) {
    const __m512 c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos + i)));
    const __m512 s =
        _mm512_xor_ps(_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin + i))), sign);
    for (int64_t h = 0; h < count; ++h) {
      float* const p = heads + h * head_dim + 2 * i;
      const __m512 x = _mm512_loadu_ps(p);
      _mm512_storeu_ps(p, _mm512_fmadd_ps(_mm512_permute_ps(x, 0xB1), s, _mm512_mul_ps(x, c)));
    }
  }
#elif defined(__AVX2__)
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));
  for (; i + 4 <= half; i += 4) {
    const __m128 c4 = _mm_loadu_ps(cos + i), s4 = _mm_loadu_ps(sin + i);
    const __m256 c = _mm256_set_m128(_mm_unpackhi_ps(c4, c4), _mm_unpacklo_ps(c4, c4));
    const __m256 s = _mm256_xor_ps(_mm256_set_m128(_mm_unpackhi_ps(s4, s4), _mm_unpacklo_ps(s4, s4)), sign);
    for (int64_t h = 0; h < count; ++h) {
      float* const p = heads + h * head_dim + 2 * i;
      const __m256 x = _mm256_loadu_ps(p);
      _mm256_storeu_ps(p, _mm256_fmadd_ps(_mm256_permute_ps(x, 0xB1), s, _mm256_mul_ps(x, c)));
    }
  }
#elif defined(__aarch64__)
  for (; i + 4 <= half; i += 4) {
    const float32x4_t c = vld1q_f32(cos + i), s = vld1q_f32(sin + i);
    for (int64_t h = 0; h < count; ++h) {
      float* const p = heads + h * head_dim + 2 * i;
      float32x4x2_t x = vld2q_f32(p);
      RotatePair(x.val[0], x.val[1], c, s);
      vst2q_f32(p, x);
    }
  }
#endif
  for (int64_t h = 0; h < count; ++h) RotateGathered(heads + h * head_dim, cos, sin, i, half);
}

CELER_INLINE void RotateHeadsLanes(float* heads, int64_t count, int64_t head_dim, const float* cos,
                                   const float* sin, int64_t rope_dim, RopeLayout layout) {
  if (layout == RopeLayout::kInterleaved)
    return RotateInterleaved(heads, count, head_dim, cos, sin, rope_dim / 2);
  for (int64_t h = 0; h < count; ++h) RotateHalf(heads + h * head_dim, cos, sin, rope_dim / 2);
}

}  // namespace
}  // namespace celer
