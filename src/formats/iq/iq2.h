// GGUF IQ2: 256 elements, 2.06 to 2.56 bits each. A code names eight magnitudes of 8, 25 and 43, and signs stand
// beside it. w = d * (scale + 1/2) / 4 * value. Read only.
#pragma once

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/iq/iq_grid.h"

namespace celer {

// Eight magnitudes with their signs, which are the bits of `signs`.
inline void PutIq2(uint16_t point, unsigned signs, int8_t* value) {
  constexpr int8_t kLevels[] = {8, 25, 43, 0};
  for (int i = 0; i < 8; ++i) {
    const int8_t magnitude = kLevels[point >> 2 * i & 3];
    value[i] = static_cast<int8_t>(signs >> i & 1 ? -magnitude : magnitude);
  }
}
inline float Iq2Scale(uint16_t d, int scale) {
  return F16ToFloat(d) * (0.5f + static_cast<float>(scale)) * 0.25f;
}

struct BlockIq2Xxs {
  static constexpr DType kDType = DType::kIq2Xxs;
  static constexpr int kElements = 256, kGroup = 32, kReach = 167;
  uint16_t d;      // f16
  uint8_t qs[64];  // of 32 columns: four codes, then 4 * 7 bits of signs and 4 of the scale

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    uint32_t more;
    std::memcpy(&more, qs + 8 * b + 4, 4);
    out->scale[0] = out->scale[1] = Iq2Scale(d, static_cast<int>(more >> 28));
    for (int i = 0; i < 4; ++i)
      PutIq2(kGridIq2Xxs[qs[8 * b + i]], EvenSigns(more >> 7 * i & 127), out->value + 8 * i);
  }
};
static_assert(sizeof(BlockIq2Xxs) == 66);

struct BlockIq2Xs {
  static constexpr DType kDType = DType::kIq2Xs;
  static constexpr int kElements = 256, kGroup = 16, kReach = 167;
  uint16_t d;         // f16
  uint16_t qs[32];    // 9 bits of code, 7 of signs
  uint8_t scales[8];  // of 16 columns, the first in the low nibble

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    for (int half = 0; half < 2; ++half) out->scale[half] = Iq2Scale(d, GetBits(scales[b], 4 * half, 4));
    for (int i = 0; i < 4; ++i) {
      const uint16_t q = qs[4 * b + i];
      PutIq2(kGridIq2Xs[q & 511], EvenSigns(q >> 9), out->value + 8 * i);
    }
  }
};
static_assert(sizeof(BlockIq2Xs) == 74);

struct BlockIq2S {
  static constexpr DType kDType = DType::kIq2S;
  static constexpr int kElements = 256, kGroup = 16, kReach = 167;
  uint16_t d;         // f16
  uint8_t qs[32];     // low 8 bits of codes
  uint8_t signs[32];  // of eight columns each
  uint8_t qh[8];      // high 2 bits of four codes
  uint8_t scales[8];  // of 16 columns, the first in the low nibble

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    for (int half = 0; half < 2; ++half) out->scale[half] = Iq2Scale(d, GetBits(scales[b], 4 * half, 4));
    for (int i = 0; i < 4; ++i)
      PutIq2(kGridIq2S[qs[4 * b + i] | GetBits(qh[b], 2 * i, 2) << 8], signs[4 * b + i], out->value + 8 * i);
  }
};
static_assert(sizeof(BlockIq2S) == 82);

}  // namespace celer
