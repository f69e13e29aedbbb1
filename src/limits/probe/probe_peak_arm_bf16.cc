#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// bfmmla: [2, 4] x [4, 2] into [2, 2] f32, 16 multiply-adds.
int64_t PeakBf16Bfmmla(int64_t iterations) {
  return RunArmChains(
      iterations, 16, vdupq_n_f32(1.0f), vreinterpretq_bf16_u16(vdupq_n_u16(0)),
      [](auto sum, auto zero) { return vbfmmlaq_f32(sum, vreinterpretq_bf16_f32(sum), zero); });
}

}  // namespace celer::probe
