// Rotary position embedding, in place.
#pragma once

#include <cstdint>
#include <span>

#include "device/variant.h"
#include "kernels/llm/rope/rope_layout.h"

namespace celer {

// Rotates the leading rope_dim elements of each of `count` heads of one token. cos and sin: [rope_dim / 2]
void RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                 int64_t rope_dim, RopeLayout layout);

using RotateHeadsFn = void (*)(float* heads, int64_t count, int64_t head_dim, const float* cos,
                               const float* sin, int64_t rope_dim, RopeLayout layout);
std::span<const Variant<RotateHeadsFn>> RotateHeadsVariants();

namespace portable {
void RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                 int64_t rope_dim, RopeLayout layout);
}
namespace x86 {
void RotateHeadsAvx2(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                     int64_t rope_dim, RopeLayout layout);
void RotateHeadsAvx512(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                       int64_t rope_dim, RopeLayout layout);
}  // namespace x86

}  // namespace celer
