#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// sdot: four dot products of four, 16 multiply-adds. The sum is also a factor (sum += sum * 0): where it is
// only added to, Neoverse-V1 mostly keeps to two of its four pipes, and the peak would depend on luck.
int64_t PeakInt8Sdot(int64_t iterations) {
  constexpr int kChains = 24;  // four pipes of at most five cycles' latency, and a few more
  int8x16_t zero = vdupq_n_s8(0);
  int32x4_t sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = vdupq_n_s32(0x01234567);
    __asm__ volatile("" : "+w"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = vdotq_s32(sum[i], vreinterpretq_s8_s32(sum[i]), zero);
    __asm__ volatile("" : "+w"(zero));  // not known to be zero
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "w"(sum[i]));
  return iterations * kChains * 16 * 2;
}

}  // namespace celer::probe
