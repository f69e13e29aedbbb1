// Plain declarations only, because files built for newer instruction sets include it.
#pragma once

#include <stdint.h>

namespace celer {

// How the two halves of a rotated pair lie in a head.
enum class RopeLayout : uint8_t {
  kHalf,         // (i, i + dim/2): Hugging Face, GGUF of qwen
  kInterleaved,  // (2i, 2i + 1): llama2.c, GGUF of llama
};

}  // namespace celer
