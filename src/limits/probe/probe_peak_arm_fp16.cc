#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// Eight multiply-adds per fmla. The sum is also a factor (sum += sum * 0): where it is only added to,
// Neoverse-V1 mostly keeps to two of its four pipes, and the peak would depend on luck.
int64_t PeakF16Neon(int64_t iterations) {
  constexpr int kChains = 24;  // four pipes of at most five cycles' latency, and a few more
  float16x8_t zero = vdupq_n_f16(0);
  float16x8_t sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = vdupq_n_f16(1.0f);
    __asm__ volatile("" : "+w"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = vfmaq_f16(sum[i], sum[i], zero);
    __asm__ volatile("" : "+w"(zero));  // not known to be zero
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "w"(sum[i]));
  return iterations * kChains * 8 * 2;
}

}  // namespace celer::probe
