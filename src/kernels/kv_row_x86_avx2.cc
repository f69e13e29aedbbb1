#include <immintrin.h>
#include <stdint.h>

namespace celer::x86 {

// n floats to f16, a multiple of 8
void StoreHalvesAvx2(const float* row, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(row + i), _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace celer::x86
