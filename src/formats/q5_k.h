// GGUF Q5_K: 256 elements in 176 bytes, 5.5 bits each. w = d * scale * q - dmin * min
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ5_K {
  static constexpr int kElements = 256;
  uint16_t d;          // f16 scale of the scales
  uint16_t dmin;       // f16 scale of the minima
  uint8_t scales[12];  // 8 scales and 8 minima of 6 bits (k_scales.h)
  uint8_t qh[32];      // bit b of byte i is the fifth bit of element 32b + i
  uint8_t qs[128];     // byte 32p + i holds element 64p + i (low nibble) and 64p + 32 + i (high)
};
static_assert(sizeof(BlockQ5_K) == 176);

// `blocks` blocks, one after another, at any address.
void DecodeQ5_K(const std::byte* in, int64_t blocks, float* out);
void EncodeQ5_K(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..31.
void SetCodesQ5_K(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
