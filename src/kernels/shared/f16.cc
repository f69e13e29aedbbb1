#include "kernels/shared/f16.h"

#include "formats/float16.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace celer {

void ToF16(const float* from, F16* to, int64_t n) {
  int64_t i = 0;
#if defined(__aarch64__)
  // Every such processor converts, also those that cannot compute with halves.
  for (; i + 8 <= n; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i)), high = vcvt_f16_f32(vld1q_f32(from + i + 4));
    vst1q_u16(&to[i].bits, vreinterpretq_u16_f16(vcombine_f16(low, high)));
  }
#endif
  for (; i < n; ++i) to[i].bits = FloatToF16(from[i]);
}

void ToFloats(const F16* from, float* to, int64_t n) {
  int64_t i = 0;
#if defined(__aarch64__)
  for (; i + 8 <= n; i += 8) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&from[i].bits));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(halves));
  }
#endif
  for (; i < n; ++i) to[i] = F16ToFloat(from[i].bits);
}

}  // namespace celer
