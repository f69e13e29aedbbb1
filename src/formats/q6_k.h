// GGUF Q6_K: 256 elements in 210 bytes, 6.5625 bits each. w = d * scale * (q - 32)
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ6_K {
  static constexpr DType kDType = DType::kQ6_K, kNarrow = DType::kQ8_0;
  static constexpr int kElements = 256, kGroup = 16, kBits = 6, kLevels = 63, kTop = 128;
  uint8_t ql[128];    // low 4 bits; byte 64h + i: element 128h + i (low nibble), 128h + 64 + i (high)
  uint8_t qh[64];     // high 2 bits; byte 32h + i holds elements 128h + i + 32s at bits 2s, s = 0..3
  int8_t scales[16];  // of 16 elements each
  uint16_t d;         // f16 scale of the scales

  constexpr int Value(int run, int j) const {
    const int low = GetBits(ql[64 * (run / 8) + 16 * (run % 4) + j], 4 * (run / 4 % 2), 4);
    return (low | GetBits(qh[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2) << 4) - 32;
  }
  constexpr void Put(int run, int j, int value) {
    SetBits(&ql[64 * (run / 8) + 16 * (run % 4) + j], 4 * (run / 4 % 2), 4, (value + 32) & 15);
    SetBits(&qh[32 * (run / 8) + 16 * (run % 2) + j], 2 * (run / 2 % 4), 2, (value + 32) >> 4);
  }
  constexpr int Scale(int group) const { return scales[group]; }
  constexpr void PutScale(int group, int scale) { scales[group] = static_cast<int8_t>(scale); }
};
static_assert(sizeof(BlockQ6_K) == 210);

}  // namespace celer
