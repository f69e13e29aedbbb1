// GGUF Q4_K: 256 elements in 144 bytes, 4.5 bits each. w = d * scale * q - dmin * min
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ4_K {
  static constexpr int kElements = 256;
  uint16_t d;          // f16 scale of the scales
  uint16_t dmin;       // f16 scale of the minima
  uint8_t scales[12];  // 8 scales and 8 minima of 6 bits (k_scales.h)
  uint8_t qs[128];     // byte 32p + i holds element 64p + i (low nibble) and 64p + 32 + i (high)
};
static_assert(sizeof(BlockQ4_K) == 144);

// `blocks` blocks, one after another, at any address.
void DecodeQ4_K(const std::byte* in, int64_t blocks, float* out);
void EncodeQ4_K(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..15.
void SetCodesQ4_K(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
