// GGUF IQ3: 256 elements, 3.06 and 3.44 bits each. A code names four magnitudes, and signs stand beside it. Read only.
#pragma once

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/iq/iq_grid.h"

namespace celer {

// Four magnitudes step * level + first, of which the last level may be `more` larger, with the lower four of `signs`.
template <int kFirst, int kStep, int kMore>
void PutIq3(uint16_t point, unsigned signs, int8_t* value) {
  for (int i = 0; i < 4; ++i) {
    const int level = point >> 3 * i & 7, magnitude = kFirst + kStep * level + (level == 7 ? kMore : 0);
    value[i] = static_cast<int8_t>(signs >> i & 1 ? -magnitude : magnitude);
  }
}

// w = d * (scale + 1/2) / 2 * value, with magnitudes 4, 12, 20 ... 52 and 62.
struct BlockIq3Xxs {
  static constexpr DType kDType = DType::kIq3Xxs;
  static constexpr int kElements = 256, kGroup = 32, kReach = 481;
  uint16_t d;        // f16
  uint8_t qs[64];    // codes
  uint8_t more[32];  // of 32 columns: 4 * 7 bits of signs and 4 of the scale

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    uint32_t bits;
    std::memcpy(&bits, more + 4 * b, 4);
    out->scale[0] = out->scale[1] = F16ToFloat(d) * (0.5f + static_cast<float>(bits >> 28)) * 0.5f;
    for (int i = 0; i < 8; ++i) {
      const unsigned signs = EvenSigns(bits >> 7 * (i / 2) & 127);
      PutIq3<4, 8, 2>(kGridIq3Xxs[qs[8 * b + i]], signs >> 4 * (i % 2), out->value + 4 * i);
    }
  }
};
static_assert(sizeof(BlockIq3Xxs) == 98);

// w = d * (2 * scale + 1) * value, with magnitudes 1, 3, 5 ... 15.
struct BlockIq3S {
  static constexpr DType kDType = DType::kIq3S;
  static constexpr int kElements = 256, kGroup = 32, kReach = 465;
  uint16_t d;         // f16
  uint8_t qs[64];     // low 8 bits of codes
  uint8_t qh[8];      // the high bit of eight codes
  uint8_t signs[32];  // of eight columns each
  uint8_t scales[4];  // of 32 columns, the first in the low nibble

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    const int scale = 2 * GetBits(scales[b / 2], 4 * (b % 2), 4) + 1;
    out->scale[0] = out->scale[1] = F16ToFloat(d) * static_cast<float>(scale);
    for (int i = 0; i < 8; ++i)
      PutIq3<1, 2, 0>(kGridIq3S[qs[8 * b + i] | GetBits(qh[b], i, 1) << 8],
                      signs[4 * b + i / 2] >> 4 * (i % 2), out->value + 4 * i);
  }
};
static_assert(sizeof(BlockIq3S) == 110);

}  // namespace celer
