#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// 32 multiply-adds per instruction.
int64_t PeakF16Avx512(int64_t iterations) {
  constexpr int kChains = 24;
  __m512h a = _mm512_set1_ph(static_cast<_Float16>(0.5f));
  __m512h b = _mm512_set1_ph(static_cast<_Float16>(-0.75f));
  __m512h sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_ph();
    __asm__ volatile("" : "+v"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ph(a, b, sum[i]);
    __asm__ volatile("" : "+v"(a), "+v"(b));  // new operands, as far as the compiler knows
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "v"(sum[i]));
  return iterations * kChains * 32 * 2;
}

}  // namespace celer::probe
