#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// vpdpbusd on 256 bits: 8 dot products of four, 32 multiply-adds.
int64_t PeakInt8AvxVnni(int64_t iterations) {
  constexpr int kChains = 12;
  __m256i a = _mm256_set1_epi8(77);
  __m256i b = _mm256_set1_epi8(-45);
  __m256i sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm256_setzero_si256();
    __asm__ volatile("" : "+x"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_dpbusd_avx_epi32(sum[i], a, b);
    __asm__ volatile("" : "+x"(a), "+x"(b));  // new operands, as far as the compiler knows
  }
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "x"(sum[i]));
  return iterations * kChains * 32 * 2;
}

}  // namespace celer::probe
