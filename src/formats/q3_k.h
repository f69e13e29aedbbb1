// GGUF Q3_K: 256 elements in 110 bytes, 3.4375 bits each. w = d * (scale - 32) * (q - 4)
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ3_K {
  static constexpr DType kDType = DType::kQ3_K, kNarrow = DType::kQ4_0;
  static constexpr int kElements = 256, kGroup = 16, kBits = 3, kLevels = 7, kTop = 32;
  uint8_t hmask[32];   // bit b of byte i is the third bit of element 32b + i
  uint8_t qs[64];      // 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  uint8_t scales[12];  // 16 scales of 6 bits: low nibbles in bytes 0..7, high 2 bits in bytes 8..11
  uint16_t d;          // f16 scale of the scales

  constexpr int Value(int run, int j) const {
    const int low = GetBits(qs[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2);
    return (low | GetBits(hmask[16 * (run % 2) + j], run / 2, 1) << 2) - 4;
  }
  constexpr void Put(int run, int j, int value) {
    SetBits(&qs[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2, (value + 4) & 3);
    SetBits(&hmask[16 * (run % 2) + j], run / 2, 1, (value + 4) >> 2);
  }
  constexpr int Scale(int group) const {
    const int low = GetBits(scales[group % 8], 4 * (group / 8), 4);
    return (low | GetBits(scales[8 + group % 4], 2 * (group / 4), 2) << 4) - 32;
  }
  constexpr void PutScale(int group, int scale) {
    SetBits(&scales[group % 8], 4 * (group / 8), 4, (scale + 32) & 15);
    SetBits(&scales[8 + group % 4], 2 * (group / 4), 2, (scale + 32) >> 4);
  }
};
static_assert(sizeof(BlockQ3_K) == 110);

}  // namespace celer
