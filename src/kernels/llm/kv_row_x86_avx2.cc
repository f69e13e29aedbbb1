#include <immintrin.h>
#include <stdint.h>

namespace celer::x86 {

// n floats to f16, a multiple of 8. Finite ones stay finite.
void StoreHalvesAvx2(const float* row, int64_t n, uint16_t* out) {
  const __m256 largest = _mm256_set1_ps(65504), lowest = _mm256_set1_ps(-65504);
  const __m256 infinity = _mm256_set1_ps(__builtin_inff()), sign = _mm256_set1_ps(-0.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 x = _mm256_loadu_ps(row + i);
    // Both give their second operand if one is NaN.
    const __m256 held = _mm256_min_ps(largest, _mm256_max_ps(lowest, x));
    const __m256 infinite = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), infinity, _CMP_EQ_OQ);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_blendv_ps(held, x, infinite), _MM_FROUND_TO_NEAREST_INT));
  }
}

}  // namespace celer::x86
