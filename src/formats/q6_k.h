// GGUF Q6_K: 256 elements in 210 bytes, 6.5625 bits each. w = d * scale * (q - 32)
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ6_K {
  static constexpr int kElements = 256;
  uint8_t ql[128];    // low 4 bits; byte 64h + i: element 128h + i (low nibble), 128h + 64 + i (high)
  uint8_t qh[64];     // high 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  int8_t scales[16];  // of 16 elements each
  uint16_t d;         // f16 scale of the scales
};
static_assert(sizeof(BlockQ6_K) == 210);

// `blocks` blocks, one after another, at any address.
void DecodeQ6_K(const std::byte* in, int64_t blocks, float* out);
void EncodeQ6_K(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..63.
void SetCodesQ6_K(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
