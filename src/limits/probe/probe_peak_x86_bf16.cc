#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// vdpbf16ps: 16 dot products of two, 32 multiply-adds.
int64_t PeakBf16Avx512(int64_t iterations) {
  constexpr int kChains = 24;
  __m512i a = _mm512_set1_epi16(0x3f01);
  __m512i b = _mm512_set1_epi16(0x3f47);
  __m512 sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i)
      sum[i] = _mm512_dpbf16_ps(sum[i], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    __asm__ volatile("" : "+v"(a), "+v"(b));  // new operands, as far as the compiler knows
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "v"(sum[i]));
  return iterations * kChains * 32 * 2;
}

}  // namespace celer::probe
