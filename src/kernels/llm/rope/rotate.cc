#include "kernels/llm/rope/rotate.h"

#include "kernels/llm/rope/rotate_lanes.h"

namespace celer {
namespace {

constexpr Variant<RotateHeadsFn> kRotateHeads[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, x86::RotateHeadsAvx512},
    {"x86_avx2", Isa::kAvx2, x86::RotateHeadsAvx2},
#endif
    {"portable", Isa::kBaseline, portable::RotateHeads},
};

}  // namespace

void portable::RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                           int64_t rope_dim, RopeLayout layout) {
  RotateHeadsLanes(heads, count, head_dim, cos, sin, rope_dim, layout);
}

std::span<const Variant<RotateHeadsFn>> RotateHeadsVariants() {
  return kRotateHeads;
}

void RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                 int64_t rope_dim, RopeLayout layout) {
  static const RotateHeadsFn run = Pick<RotateHeadsFn>("rope", kRotateHeads)->run;
  run(heads, count, head_dim, cos, sin, rope_dim, layout);
}

}  // namespace celer
