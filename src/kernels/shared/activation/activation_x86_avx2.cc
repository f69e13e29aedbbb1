#include "kernels/shared/activation/activation_lanes.h"

namespace celer::x86 {

void ActivateMulAvx2(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                     float limit) {
  ActivateMulLanes(kind, gate, up, out, n, limit);
}

}  // namespace celer::x86
