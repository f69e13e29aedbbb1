// GGUF Q3_K: 256 elements in 110 bytes, 3.4375 bits each. w = d * (scale - 32) * (q - 4)
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ3_K {
  static constexpr int kElements = 256;
  uint8_t hmask[32];   // bit b of byte i is the third bit of element 32b + i; a clear bit means minus 4
  uint8_t qs[64];      // 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  uint8_t scales[12];  // 16 scales of 6 bits: low nibbles in bytes 0..7, high 2 bits in bytes 8..11
  uint16_t d;          // f16 scale of the scales
};
static_assert(sizeof(BlockQ3_K) == 110);

// `blocks` blocks, one after another, at any address.
void DecodeQ3_K(const std::byte* in, int64_t blocks, float* out);
void EncodeQ3_K(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..7.
void SetCodesQ3_K(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
