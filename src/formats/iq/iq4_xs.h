// GGUF IQ4_XS: 256 elements in 136 bytes, 4.25 bits each. w = d * (scale - 32) * level[q], the levels of IQ4_NL.
#pragma once

#include "formats/block_io.h"
#include "formats/iq/iq4_nl.h"

namespace celer {

struct BlockIq4Xs {
  static constexpr DType kDType = DType::kIq4Xs, kNarrow = DType::kIq4Nl;
  static constexpr int kElements = 256, kGroup = 32, kBits = 8, kLevels = 0, kTop = 32;
  uint16_t d;           // f16 scale of the scales
  uint16_t scales_h;    // high 2 bits of 8 scales
  uint8_t scales_l[4];  // low 4 bits
  uint8_t qs[128];      // byte 16g + j holds element 32g + j (low nibble) and 32g + 16 + j (high)

  constexpr int Code(int run, int j) const { return GetBits(qs[16 * (run / 2) + j], 4 * (run % 2), 4); }
  constexpr int Value(int run, int j) const { return BlockIq4Nl::Level(Code(run, j)); }
  constexpr int Scale(int group) const {
    const int low = GetBits(scales_l[group / 2], 4 * (group % 2), 4);
    return (low | GetBits(scales_h, 2 * group, 2) << 4) - 32;
  }
  constexpr void PutScale(int group, int scale) {
    SetBits(&scales_l[group / 2], 4 * (group % 2), 4, (scale + 32) & 15);
    SetBits(&scales_h, 2 * group, 2, (scale + 32) >> 4);
  }
  void Encode(const float* x, const float* importance);
};
static_assert(sizeof(BlockIq4Xs) == 136);

}  // namespace celer
