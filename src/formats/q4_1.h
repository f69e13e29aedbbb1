// GGUF Q4_1: 32 elements in 20 bytes, 5 bits each. w = d * q + m
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ4_1 {
  static constexpr DType kDType = DType::kQ4_1;
  static constexpr int kElements = 32, kGroup = 32, kBits = 4, kLevels = 15;
  uint16_t d;      // f16 scale
  uint16_t m;      // f16 minimum
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  constexpr int Value(int run, int j) const { return GetBits(qs[j], 4 * run, 4); }
  constexpr void Put(int run, int j, int value) { SetBits(&qs[j], 4 * run, 4, value); }
};
static_assert(sizeof(BlockQ4_1) == 20);

}  // namespace celer
