// The 6-bit packing that Q4_K and Q5_K share.
#pragma once

#include <cstdint>

namespace celer {

// Eight scales and eight minima of 6 bits in 12 bytes. Of 0..3: the low 6 bits of bytes i and i + 4. Of 4..7:
// low 4 bits in byte i + 4 (scale in the low nibble, minimum in the high one), high 2 bits on top of bytes i
// - 4 and i.
struct KScales {
  uint8_t scale[8];
  uint8_t min[8];
};
KScales UnpackKScales(const uint8_t packed[12]);
void PackKScales(const uint8_t scale[8], const uint8_t min[8], uint8_t packed[12]);

}  // namespace celer
