#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// sdot: four dot products of four, 16 multiply-adds.
int64_t PeakInt8Sdot(int64_t iterations) {
  return RunArmChains(iterations, 16, vdupq_n_s32(0x01234567), vdupq_n_s8(0),
                      [](auto sum, auto zero) { return vdotq_s32(sum, vreinterpretq_s8_s32(sum), zero); });
}

}  // namespace celer::probe
