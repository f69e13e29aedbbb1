// GGUF Q5_1: 32 elements in 24 bytes, 6 bits each. w = d * q + m
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ5_1 {
  static constexpr DType kDType = DType::kQ5_1;
  static constexpr int kElements = 32, kGroup = 32, kBits = 5, kLevels = 31;
  uint16_t d;      // f16 scale
  uint16_t m;      // f16 minimum
  uint16_t qh[2];  // bit j of word r is the fifth bit of element 16r + j
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  constexpr int FifthBit(int i) const {  // of one word, which loops keep
    return static_cast<int>((qh[0] | uint32_t{qh[1]} << 16) >> i & 1) << 4;
  }
  constexpr int Value(int run, int j) const { return GetBits(qs[j], 4 * run, 4) | FifthBit(16 * run + j); }
  constexpr void Put(int run, int j, int value) {
    SetBits(&qs[j], 4 * run, 4, value & 15);
    SetBits(&qh[run], j, 1, value >> 4);
  }
};
static_assert(sizeof(BlockQ5_1) == 24);

}  // namespace celer
