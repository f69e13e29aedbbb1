// Rotary position embedding, in place.
#pragma once

#include <cstdint>

namespace celer {

// How the two halves of a rotated pair lie in a head.
enum class RopeLayout : uint8_t {
  kHalf,         // (i, i + dim/2): Hugging Face, GGUF of qwen
  kInterleaved,  // (2i, 2i + 1): llama2.c, GGUF of llama
};

// Rotates the leading rope_dim elements of each of `count` heads of one token. cos and sin: [rope_dim / 2]
void RotateHeads(float* heads, int64_t count, int64_t head_dim, const float* cos, const float* sin,
                 int64_t rope_dim, RopeLayout layout);

}  // namespace celer
