// Deinterleaving loads (every second number), and small transposes; see simd.h for why all of it is in an
// unnamed namespace.
#pragma once

#include "kernels/shared/lanes.h"

namespace celer {
namespace {

#if defined(__AVX512F__)
CELER_INLINE Simd::F EverySecondOf(Simd::F low, Simd::F high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(low, even, high);
}
#elif defined(__AVX2__)
CELER_INLINE Simd::F EverySecondOf(Simd::F low, Simd::F high) {
  const __m256 mixed = _mm256_shuffle_ps(low, high, 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
#endif

// p[0], p[2], p[4], ...: reads 2 * kLanes floats.
CELER_INLINE Simd::F LoadEverySecond(const float* p) {
#if defined(__aarch64__)
  return vld2q_f32(p).val[0];
#elif defined(__AVX2__)
  return EverySecondOf(Simd::Load(p), Simd::Load(p + Simd::kLanes));
#else
  float lanes[Simd::kLanes];
  for (int i = 0; i < Simd::kLanes; ++i) lanes[i] = p[2 * i];
  return Simd::Load(lanes);
#endif
}

// Four rows of four floats to four columns.
CELER_INLINE void Transpose4x4(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
#if defined(__aarch64__)
  const float32x4_t a = vld1q_f32(in), b = vld1q_f32(in + in_stride), c = vld1q_f32(in + 2 * in_stride),
                    d = vld1q_f32(in + 3 * in_stride);
  const float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b)),
                    ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b)),
                    cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d)),
                    cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0)));
  vst1q_f32(out + out_stride, vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1)));
  vst1q_f32(out + 2 * out_stride, vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0)));
  vst1q_f32(out + 3 * out_stride, vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1)));
#elif defined(__SSE2__) && defined(__AVX2__)
  __m128 a = _mm_loadu_ps(in), b = _mm_loadu_ps(in + in_stride), c = _mm_loadu_ps(in + 2 * in_stride),
         d = _mm_loadu_ps(in + 3 * in_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(out, a);
  _mm_storeu_ps(out + out_stride, b);
  _mm_storeu_ps(out + 2 * out_stride, c);
  _mm_storeu_ps(out + 3 * out_stride, d);
#else
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) out[j * out_stride + i] = in[i * in_stride + j];
#endif
}

#if defined(CELER_LANES_F16)
CELER_INLINE Lanes::F LoadEverySecond(const F16* p) {
  return vreinterpretq_f16_u16(vld2q_u16(&p->bits).val[0]);
}

CELER_INLINE void Transpose4x4(const F16* in, int64_t in_stride, F16* out, int64_t out_stride) {
  const uint16x4_t a = vld1_u16(&in->bits), b = vld1_u16(&in[in_stride].bits),
                   c = vld1_u16(&in[2 * in_stride].bits), d = vld1_u16(&in[3 * in_stride].bits);
  const uint32x2_t ab0 = vreinterpret_u32_u16(vtrn1_u16(a, b)), ab1 = vreinterpret_u32_u16(vtrn2_u16(a, b)),
                   cd0 = vreinterpret_u32_u16(vtrn1_u16(c, d)), cd1 = vreinterpret_u32_u16(vtrn2_u16(c, d));
  vst1_u16(&out->bits, vreinterpret_u16_u32(vtrn1_u32(ab0, cd0)));
  vst1_u16(&out[out_stride].bits, vreinterpret_u16_u32(vtrn1_u32(ab1, cd1)));
  vst1_u16(&out[2 * out_stride].bits, vreinterpret_u16_u32(vtrn2_u32(ab0, cd0)));
  vst1_u16(&out[3 * out_stride].bits, vreinterpret_u16_u32(vtrn2_u32(ab1, cd1)));
}
#endif

}  // namespace
}  // namespace celer
