#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// Four multiply-adds per fmla.
int64_t PeakF32Neon(int64_t iterations) {
  return RunArmChains(iterations, 4, vdupq_n_f32(1.0f), vdupq_n_f32(0),
                      [](auto sum, auto zero) { return vfmaq_f32(sum, sum, zero); });
}

}  // namespace celer::probe
