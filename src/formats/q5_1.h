// GGUF Q5_1: 32 elements in 24 bytes, 6 bits each. w = d * q + m
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ5_1 {
  static constexpr int kElements = 32;
  uint16_t d;      // f16 scale
  uint16_t m;      // f16 minimum
  uint8_t qh[4];   // bit j is the fifth bit of element j (little-endian)
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one
};
static_assert(sizeof(BlockQ5_1) == 24);

// `blocks` blocks, one after another, at any address.
void DecodeQ5_1(const std::byte* in, int64_t blocks, float* out);
void EncodeQ5_1(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..31.
void SetCodesQ5_1(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
