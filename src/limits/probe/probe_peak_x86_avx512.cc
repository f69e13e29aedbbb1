#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// 16 multiply-adds per instruction; 24 chains of the 32 registers.
int64_t PeakF32Avx512(int64_t iterations) {
  constexpr int kChains = 24;
  __m512 a = _mm512_set1_ps(0.5f);
  __m512 b = _mm512_set1_ps(-0.75f);
  __m512 sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
    __asm__ volatile("" : "+v"(a), "+v"(b));  // new operands, as far as the compiler knows
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "v"(sum[i]));
  return iterations * kChains * 16 * 2;
}

}  // namespace celer::probe
