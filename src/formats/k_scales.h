// The 6-bit packing that Q4_K and Q5_K share.
#pragma once

#include "formats/block_io.h"

namespace celer {

// Eight scales and eight minima of 6 bits in 12 bytes. Of 0..3: the low 6 bits of bytes i and i + 4. Of 4..7:
// low 4 bits in byte i + 4 (scale in the low nibble, minimum in the high one), high 2 bits on top of bytes i
// - 4 and i.
struct KScales {
  uint8_t at[12];

  constexpr int Scale(int i) const {
    return i < 4 ? GetBits(at[i], 0, 6) : GetBits(at[i + 4], 0, 4) | GetBits(at[i - 4], 6, 2) << 4;
  }
  constexpr int Min(int i) const {
    return i < 4 ? GetBits(at[i + 4], 0, 6) : GetBits(at[i + 4], 4, 4) | GetBits(at[i], 6, 2) << 4;
  }
  constexpr void PutScale(int i, int scale) {
    if (i < 4) return SetBits(&at[i], 0, 6, scale);
    SetBits(&at[i + 4], 0, 4, scale & 15);
    SetBits(&at[i - 4], 6, 2, scale >> 4);
  }
  constexpr void PutMin(int i, int min) {
    if (i < 4) return SetBits(&at[i + 4], 0, 6, min);
    SetBits(&at[i + 4], 4, 4, min & 15);
    SetBits(&at[i], 6, 2, min >> 4);
  }
};

}  // namespace celer
