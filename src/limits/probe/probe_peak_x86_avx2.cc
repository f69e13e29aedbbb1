#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// 12 chains of 8 lanes: two pipes of four or five cycles' latency, within 16 registers.
int64_t PeakF32Avx2(int64_t iterations) {
  return RunChains<12>(iterations, 8, _mm256_setzero_ps(), _mm256_set1_ps(0.5f), _mm256_set1_ps(-0.75f),
                       [](auto sum, auto a, auto b) { return _mm256_fmadd_ps(a, b, sum); });
}

// Without VNNI: u8 x s8 pairs into int16 (77 * 45 * 2 does not saturate), pairs of those into int32, add.
int64_t PeakInt8Avx2(int64_t iterations) {
  constexpr int kChains = 6;
  __m256i a = _mm256_set1_epi8(77);
  __m256i b = _mm256_set1_epi8(-45);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[kChains];
#pragma GCC unroll 6
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm256_setzero_si256();
    __asm__ volatile("" : "+x"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 6
    for (int i = 0; i < kChains; ++i) {
      __asm__ volatile("" : "+x"(a), "+x"(b));  // per chain: they would all share one product otherwise
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "x"(sum[i]));
  return iterations * kChains * 32 * 2;
}

}  // namespace celer::probe
