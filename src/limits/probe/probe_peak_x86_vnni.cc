#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// vpdpbusd: 16 dot products of four, 64 multiply-adds.
int64_t PeakInt8Vnni(int64_t iterations) {
  constexpr int kChains = 24;
  __m512i a = _mm512_set1_epi8(77);
  __m512i b = _mm512_set1_epi8(-45);
  __m512i sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_si512();
    __asm__ volatile("" : "+v"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
    __asm__ volatile("" : "+v"(a), "+v"(b));  // new operands, as far as the compiler knows
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "v"(sum[i]));
  return iterations * kChains * 64 * 2;
}

}  // namespace celer::probe
