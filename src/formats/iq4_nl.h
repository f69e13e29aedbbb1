// GGUF IQ4_NL: 32 elements in 18 bytes, 4.5 bits each. w = d * level[q]: sixteen levels that stand closer
// together near zero, where most weights are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockIq4Nl {
  static constexpr int kElements = 32;
  uint16_t d;      // f16 scale
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one
};
static_assert(sizeof(BlockIq4Nl) == 18);

struct Iq4NlLevels {  // a struct, so that a GPU's constant memory can be a copy
  int8_t at[16];
};
inline constexpr Iq4NlLevels kIq4NlLevels = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

// `blocks` blocks, one after another, at any address.
void DecodeIq4Nl(const std::byte* in, int64_t blocks, float* out);
void EncodeIq4Nl(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);

}  // namespace celer
