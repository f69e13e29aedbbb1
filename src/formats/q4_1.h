// GGUF Q4_1: 32 elements in 20 bytes, 5 bits each. w = d * q + m
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ4_1 {
  static constexpr int kElements = 32;
  uint16_t d;      // f16 scale
  uint16_t m;      // f16 minimum
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one
};
static_assert(sizeof(BlockQ4_1) == 20);

// `blocks` blocks, one after another, at any address.
void DecodeQ4_1(const std::byte* in, int64_t blocks, float* out);
void EncodeQ4_1(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..15.
void SetCodesQ4_1(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
