// Rows of keys and values as vectors of floats, per KV type; see simd.h for the unnamed namespace.
#pragma once

#include "kernels/shared/simd.h"

namespace celer {
namespace {

struct F32Rows {
  static constexpr int kBytes = 4;
  static CELER_INLINE Simd::F Load(const uint8_t* p) { return Simd::Load(reinterpret_cast<const float*>(p)); }
};

#if defined(__aarch64__)

struct F16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
};
struct Bf16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
  }
};
struct I8Rows {
  static constexpr int kBytes = 1;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }
};

#elif defined(__AVX512F__)

struct F16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
struct Bf16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};
struct I8Rows {
  static constexpr int kBytes = 1;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct F16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
struct Bf16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
struct I8Rows {
  static constexpr int kBytes = 1;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
};

#else

struct F16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    const Simd::I bits = {h[0], h[1], h[2], h[3]};
    const Simd::I magnitude = (bits & 0x7fff) << 13;
    // The product moves the exponent, and normalizes what was subnormal; infinity and NaN need all its bits.
    const Simd::I finite = (Simd::I)((Simd::F)magnitude * 0x1p112f);
    const Simd::I value = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : finite;
    return (Simd::F)(value | (bits & 0x8000) << 16);
  }
};
struct Bf16Rows {
  static constexpr int kBytes = 2;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    const Simd::I bits = {h[0], h[1], h[2], h[3]};
    return (Simd::F)(bits << 16);
  }
};
struct I8Rows {
  static constexpr int kBytes = 1;
  static CELER_INLINE Simd::F Load(const uint8_t* p) {
    int8_t b[4];
    memcpy(b, p, sizeof b);
    return Simd::F{static_cast<float>(b[0]), static_cast<float>(b[1]), static_cast<float>(b[2]),
                   static_cast<float>(b[3])};
  }
};

#endif

// The first n < kLanes elements, zeros behind them.
template <class Rows>
CELER_INLINE Simd::F LoadRowEnd(const uint8_t* p, int64_t n) {
  uint8_t bytes[Simd::kLanes * Rows::kBytes] = {};
  memcpy(bytes, p, static_cast<size_t>(n * Rows::kBytes));
  return Rows::Load(bytes);
}

// Horizontal sums of four vectors, each in the same order, as four neighbours in memory.
CELER_INLINE void StoreSums(float* out, Simd::F a, Simd::F b, Simd::F c, Simd::F d) {
#if defined(__aarch64__)
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
#elif defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512F__)
  const auto half = [](__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  };
  const __m256 ha = half(a), hb = half(b), hc = half(c), hd = half(d);
#else
  const __m256 ha = a, hb = b, hc = c, hd = d;
#endif
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(ha, hb), _mm256_hadd_ps(hc, hd));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  out[0] = Simd::Sum(a);
  out[1] = Simd::Sum(b);
  out[2] = Simd::Sum(c);
  out[3] = Simd::Sum(d);
#endif
}

}  // namespace
}  // namespace celer
