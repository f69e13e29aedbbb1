// GGUF Q2_K: 256 elements in 84 bytes, 2.625 bits each. w = d * scale * q - dmin * min
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ2_K {
  static constexpr int kElements = 256;
  uint8_t scales[16];  // of 16 elements each: scale in the low nibble, minimum in the high one
  uint8_t qs[64];      // 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  uint16_t d;          // f16 scale of the scales
  uint16_t dmin;       // f16 scale of the minima
};
static_assert(sizeof(BlockQ2_K) == 84);

// `blocks` blocks, one after another, at any address.
void DecodeQ2_K(const std::byte* in, int64_t blocks, float* out);
void EncodeQ2_K(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..3.
void SetCodesQ2_K(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
