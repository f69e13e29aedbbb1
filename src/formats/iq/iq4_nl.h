// GGUF IQ4_NL: 32 elements in 18 bytes, 4.5 bits each. w = d * level[q]: a codebook of sixteen levels, denser
// near zero, where most weights are.
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockIq4Nl {
  static constexpr DType kDType = DType::kIq4Nl;
  static constexpr int kElements = 32, kGroup = 32, kBits = 8, kLevels = 0;
  uint16_t d;      // f16 scale
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  static constexpr int Level(int q) {
    // As text, because a GPU cannot index a constant array of the host:
    // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
    return static_cast<int8_t>("\x81\x98\xad\xbf\xcf\xdd\xea\xf6\x01\x0d\x19\x26\x35\x45\x59\x71"[q]);
  }
  constexpr int Code(int run, int j) const { return GetBits(qs[j], 4 * run, 4); }
  constexpr int Value(int run, int j) const { return Level(Code(run, j)); }
  void Encode(const float* x, const float* importance);
};
static_assert(sizeof(BlockIq4Nl) == 18);

}  // namespace celer
