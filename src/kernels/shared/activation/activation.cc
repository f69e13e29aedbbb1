#include "kernels/shared/activation/activation.h"

#include <cmath>

#include "kernels/shared/activation/activation_lanes.h"

namespace celer {
namespace {

float Activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * std::erfc(x * -0.70710678f);
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return x;
}

float ClampedSwigluOf(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1.0f + std::exp(-1.702f * g)) * (u + 1.0f);
}

constexpr Variant<ActivateMulFn> kActivateMul[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, x86::ActivateMulAvx512},
    {"x86_avx2", Isa::kAvx2, x86::ActivateMulAvx2},
#endif
    {"portable", Isa::kBaseline, portable::ActivateMul},
    {"reference", Isa::kBaseline, reference::ActivateMul},
};

}  // namespace

void reference::ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                            float limit) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = limit > 0 ? ClampedSwigluOf(gate[i], up[i], limit) : Activate(kind, gate[i]) * up[i];
}

void portable::ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n,
                           float limit) {
  ActivateMulLanes(kind, gate, up, out, n, limit);
}

std::span<const Variant<ActivateMulFn>> ActivateMulVariants() {
  return kActivateMul;
}

void ActivateMul(Activation kind, const float* gate, const float* up, float* out, int64_t n, float limit) {
  static const ActivateMulFn run = Pick<ActivateMulFn>("activation", kActivateMul)->run;
  run(kind, gate, up, out, n, limit);
}

}  // namespace celer
