#include "kernels/llm/rope/rotate_lanes.h"

namespace celer::x86 {

void RotateHeadsAvx512(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                       int64_t rope_dim, RopeLayout layout) {
  RotateHeadsLanes(heads, count, head_dim, cos, sin, rope_dim, layout);
}

}  // namespace celer::x86
