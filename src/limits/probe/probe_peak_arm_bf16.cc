#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

// bfmmla: [2, 4] x [4, 2] into [2, 2] f32, 16 multiply-adds. The sum is also a factor (sum += sum * 0): where
// it is only added to, Neoverse-V1 mostly keeps to two of its four pipes, and the peak would depend on luck.
int64_t PeakBf16Bfmmla(int64_t iterations) {
  constexpr int kChains = 24;  // four pipes of at most five cycles' latency, and a few more
  bfloat16x8_t zero = vreinterpretq_bf16_u16(vdupq_n_u16(0));
  float32x4_t sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = vdupq_n_f32(1.0f);
    __asm__ volatile("" : "+w"(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = vbfmmlaq_f32(sum[i], vreinterpretq_bf16_f32(sum[i]), zero);
    __asm__ volatile("" : "+w"(zero));  // not known to be zero
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : "w"(sum[i]));
  return iterations * kChains * 16 * 2;
}

}  // namespace celer::probe
