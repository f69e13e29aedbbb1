#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// smmla: [2, 8] x [8, 2] into [2, 2] int32, 32 multiply-adds.
int64_t PeakInt8Smmla(int64_t iterations) {
  return RunArmChains(iterations, 32, vdupq_n_s32(0x01234567), vdupq_n_s8(0),
                      [](auto sum, auto zero) { return vmmlaq_s32(sum, vreinterpretq_s8_s32(sum), zero); });
}

}  // namespace celer::probe
