// Sixteen levels that nibbles name, as the table of one byte permutation. In an unnamed namespace: files built for several
// instruction sets include this.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace celer::arm {
namespace {

struct Fp4Levels {  // of BlockMxfp4
  static inline int8x16_t Table() {
    constexpr int8_t kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return vld1q_s8(kLevels);
  }
};
struct Iq4Levels {  // of BlockIq4Nl
  static inline int8x16_t Table() {
    constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return vld1q_s8(kLevels);
  }
};

}  // namespace
}  // namespace celer::arm
