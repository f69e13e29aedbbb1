// GGUF NVFP4: 64 elements in 36 bytes, 4.5 bits each. w = scale * level[q] / 2, with the levels of mxfp4.h and a scale in
// fp8 e4m3 to 16 elements. A scale of the whole tensor may stand beside it in the file (".scale"). Read only.
#pragma once

#include <cmath>

#include "formats/block_io.h"
#include "formats/fp4/mxfp4.h"

namespace celer {

struct BlockNvfp4 {
  static constexpr DType kDType = DType::kNvfp4;
  static constexpr int kElements = 64, kGroup = 16, kReach = 1;
  uint8_t scales[4];  // of 16 elements
  uint8_t qs[32];     // byte 8g + j holds element 16g + j (low nibble) and 16g + 8 + j (high)

  // Unsigned, and what would be NaN is zero: so all scales are in range.
  static float Scale(uint8_t bits) {
    const int exponent = GetBits(bits, 3, 4), mantissa = GetBits(bits, 0, 3);
    if (bits == 0x7f) return 0;
    return std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 8),
                      std::max(exponent, 1) - 11);
  }
  uint16_t LargestScale() const { return 0; }
  void Unpack(int b, Scaled32* out) const {
    for (int half = 0; half < 2; ++half) {
      out->scale[half] = Scale(scales[2 * b + half]);
      for (int j = 0; j < 16; ++j)
        out->value[16 * half + j] =
            static_cast<int8_t>(BlockMxfp4::Level(GetBits(qs[8 * (2 * b + half) + j % 8], j < 8 ? 0 : 4, 4)));
    }
  }
};
static_assert(sizeof(BlockNvfp4) == 36);

}  // namespace celer
