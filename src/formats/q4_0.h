// GGUF Q4_0: 32 elements in 18 bytes, 4.5 bits each. w = d * (q - 8)
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ4_0 {
  static constexpr int kElements = 32;
  uint16_t d;      // f16 scale
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one
};
static_assert(sizeof(BlockQ4_0) == 18);

// `blocks` blocks, one after another, at any address.
void DecodeQ4_0(const std::byte* in, int64_t blocks, float* out);
void EncodeQ4_0(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..15.
void SetCodesQ4_0(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
