// GGUF Q8_0: 32 elements in 34 bytes, 8.5 bits each. w = d * q
#pragma once

#include <cstddef>
#include <cstdint>

namespace celer {

struct BlockQ8_0 {
  static constexpr int kElements = 32;
  uint16_t d;  // f16 scale
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

// `blocks` blocks, one after another, at any address.
void DecodeQ8_0(const std::byte* in, int64_t blocks, float* out);
// Fine enough without importance, which is not looked at.
void EncodeQ8_0(const float* in, int64_t blocks, std::byte* out, const float* importance = nullptr);
// Other integers for blocks that keep their scales: of all elements, 0..254, q + 127.
void SetCodesQ8_0(const uint8_t* codes, int64_t blocks, std::byte* out);

}  // namespace celer
