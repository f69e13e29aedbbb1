// GGUF Q2_K: 256 elements in 84 bytes, 2.625 bits each. w = d * scale * q - dmin * min
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ2_K {
  static constexpr DType kDType = DType::kQ2_K, kNarrow = DType::kQ4_0;
  static constexpr int kElements = 256, kGroup = 16, kBits = 2, kLevels = 3, kTop = 15;
  uint8_t scales[16];  // of 16 elements each: scale in the low nibble, minimum in the high one
  uint8_t qs[64];      // 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  uint16_t d;          // f16 scale of the scales
  uint16_t dmin;       // f16 scale of the minima

  constexpr int Value(int run, int j) const {
    return GetBits(qs[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2);
  }
  constexpr void Put(int run, int j, int value) {
    SetBits(&qs[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2, value);
  }
  constexpr int Scale(int group) const { return GetBits(scales[group], 0, 4); }
  constexpr int Min(int group) const { return GetBits(scales[group], 4, 4); }
  constexpr void PutScale(int group, int scale) { SetBits(&scales[group], 0, 4, scale); }
  constexpr void PutMin(int group, int min) { SetBits(&scales[group], 4, 4, min); }
};
static_assert(sizeof(BlockQ2_K) == 84);

}  // namespace celer
