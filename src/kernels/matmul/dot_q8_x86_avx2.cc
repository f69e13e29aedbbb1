// Dot products of Q8_0, Q4_0 and Q4_1 weight rows with int8 activations, 32 multiply-adds in two
// instructions.
//
// The same shape as the NEON file: four rows share a block of activations, four tokens share an unpacked
// block of weights, and each sum's order of additions depends on the number of columns alone.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matmul/activation_q8.h"
#include "kernels/matmul/dot_q8.h"
#include "kernels/matmul/dot_q8_rows.h"

namespace celer::x86 {
namespace {

inline float HalfAt(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return _cvtsh_ss(h);
}

inline __m256i Nibbles(const uint8_t* p) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// A block of a format: 32 signed values, a scale, and for some a minimum.
struct Q8_0 {
  static constexpr int kBytes = 34;
  static constexpr bool kHasMin = false;
  static inline __m256i Load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2));
  }
};
struct Q4_0 {
  static constexpr int kBytes = 18;
  static constexpr bool kHasMin = false;
  static inline __m256i Load(const uint8_t* p) {
    return _mm256_sub_epi8(Nibbles(p + 2), _mm256_set1_epi8(8));
  }
};
struct Q4_1 {
  static constexpr int kBytes = 20;
  static constexpr bool kHasMin = true;
  static inline __m256i Load(const uint8_t* p) { return Nibbles(p + 4); }
};

// Eight int32 sums of four products each. maddubs wants one unsigned side: |w| and x with w's sign. Its
// 16-bit sums hold 2 * 128 * 127 < 2^15 only because activations never are -128.
inline __m256i Dot32(__m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline float Sum(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

struct Avx2 {
  template <class Format, int kRows, int kTokens>
  static void Dot(const uint8_t* w, int64_t row_bytes, const Q8Block4* x, int64_t blocks, float* out) {
    __m256 sum[kRows][kTokens];
    __m128 min_sum[kRows];  // lanes are tokens
    for (int r = 0; r < kRows; ++r) {
      min_sum[r] = _mm_setzero_ps();
      for (int t = 0; t < kTokens; ++t) sum[r][t] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < blocks; ++b, ++x, w += Format::kBytes) {
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* p = w + r * row_bytes;
        _mm_prefetch(reinterpret_cast<const char*>(p + 512), _MM_HINT_T0);
        const __m256i values = Format::Load(p);
        const float scale = HalfAt(p);
        if (Format::kHasMin)
          min_sum[r] = _mm_fmadd_ps(_mm_loadu_ps(x->sum), _mm_set1_ps(HalfAt(p + 2)), min_sum[r]);
        for (int t = 0; t < kTokens; ++t) {
          const __m256i xv = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x->q[t]));
          const __m256 dot = _mm256_cvtepi32_ps(Dot32(values, xv));
          sum[r][t] = _mm256_fmadd_ps(dot, _mm256_set1_ps(scale * x->scale[t]), sum[r][t]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float mins[kQ8Tokens];
      _mm_storeu_ps(mins, min_sum[r]);
      for (int t = 0; t < kTokens; ++t) out[t * kQ8MaxRows + r] = Sum(sum[r][t]) + mins[t];
    }
  }
};

}  // namespace

void DotQ8_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Avx2, Q8_0>(w, row_bytes, rows, x, tokens, blocks, out);
}
void DotQ4_0(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Avx2, Q4_0>(w, row_bytes, rows, x, tokens, blocks, out);
}
void DotQ4_1(const uint8_t* w, int64_t row_bytes, int rows, const Q8Block4* x, int tokens, int64_t blocks,
             float* out) {
  DotRows<Avx2, Q4_1>(w, row_bytes, rows, x, tokens, blocks, out);
}

}  // namespace celer::x86
