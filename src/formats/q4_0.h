// GGUF Q4_0: 32 elements in 18 bytes, 4.5 bits each. w = d * (q - 8)
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ4_0 {
  static constexpr DType kDType = DType::kQ4_0;
  static constexpr int kElements = 32, kGroup = 32, kBits = 4, kLevels = 15;
  uint16_t d;      // f16 scale
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  constexpr int Value(int run, int j) const { return GetBits(qs[j], 4 * run, 4) - 8; }
  constexpr void Put(int run, int j, int value) { SetBits(&qs[j], 4 * run, 4, value + 8); }
};
static_assert(sizeof(BlockQ4_0) == 18);

}  // namespace celer
