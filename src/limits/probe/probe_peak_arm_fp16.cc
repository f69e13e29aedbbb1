#include <arm_neon.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// Eight multiply-adds per fmla.
int64_t PeakF16Neon(int64_t iterations) {
  return RunArmChains(iterations, 8, vdupq_n_f16(1.0f), vdupq_n_f16(0),
                      [](auto sum, auto zero) { return vfmaq_f16(sum, sum, zero); });
}

}  // namespace celer::probe
