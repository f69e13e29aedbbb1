// GGUF Q4_K: 256 elements in 144 bytes, 4.5 bits each. w = d * scale * q - dmin * min
#pragma once

#include "formats/block_io.h"
#include "formats/k_scales.h"

namespace celer {

struct BlockQ4_K {
  static constexpr DType kDType = DType::kQ4_K, kNarrow = DType::kQ5_0;
  static constexpr int kElements = 256, kGroup = 32, kBits = 4, kLevels = 15, kTop = 63;
  uint16_t d;       // f16 scale of the scales
  uint16_t dmin;    // f16 scale of the minima
  KScales scales;   // 8 scales and 8 minima of 6 bits
  uint8_t qs[128];  // byte 32p + i holds element 64p + i (low nibble) and 64p + 32 + i (high)

  constexpr int Value(int run, int j) const {
    return GetBits(qs[32 * (run / 4) + 16 * (run % 2) + j], 4 * (run / 2 % 2), 4);
  }
  constexpr void Put(int run, int j, int value) {
    SetBits(&qs[32 * (run / 4) + 16 * (run % 2) + j], 4 * (run / 2 % 2), 4, value);
  }
  constexpr int Scale(int group) const { return scales.Scale(group); }
  constexpr int Min(int group) const { return scales.Min(group); }
  constexpr void PutScale(int group, int scale) { scales.PutScale(group, scale); }
  constexpr void PutMin(int group, int min) { scales.PutMin(group, min); }
};
static_assert(sizeof(BlockQ4_K) == 144);

}  // namespace celer
