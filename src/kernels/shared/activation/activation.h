// out = act(gate) * up, element by element: what stands between the two halves of a feed-forward block. With a limit it is
// a clamped SwiGLU: g * sigmoid(1.702 g) * (u + 1), with g = min(gate, limit) and u = up between -limit and limit.
#pragma once

#include <cstdint>
#include <span>

#include "device/variant.h"
#include "kernels/shared/activation/activation_kind.h"

namespace celer {

// An element's result depends on its own gate and up alone, not on where it stands in the row. `out` may be
// `gate` or `up`. Runs on the calling thread: callers split rows.
void ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n, float limit = 0);

using ActivateMulFn = void (*)(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                               float limit);
std::span<const Variant<ActivateMulFn>> ActivateMulVariants();

namespace reference {
void ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n, float limit = 0);
}
namespace portable {
void ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n, float limit);
}
namespace x86 {
void ActivateMulAvx2(Activation kind, const float* gate, const float* up, float* out, int64_t n, float limit);
void ActivateMulAvx512(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                       float limit);
}  // namespace x86

}  // namespace celer
