// GGUF IQ1: 256 elements, 1.56 and 1.75 bits each. A code names eight trits of -1, 0 and 1, all moved by 1/8 to one
// side: w = d * (2 * scale + 1) * (trit +- 1/8). Values here are eight times as large, the scale an eighth. Read only.
#pragma once

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/iq/iq_grid.h"

namespace celer {

inline void PutIq1(uint16_t point, bool down, int8_t* value) {
  for (int i = 0; i < 8; ++i)
    value[i] = static_cast<int8_t>(8 * ((point >> 2 * i & 3) - 1) + (down ? -1 : 1));
}
inline float Iq1Scale(uint16_t d, int scale) {
  return F16ToFloat(d) * static_cast<float>(2 * scale + 1) * 0.125f;
}

struct BlockIq1S {
  static constexpr DType kDType = DType::kIq1S;
  static constexpr int kElements = 256, kGroup = 32, kReach = 17;
  uint16_t d;      // f16
  uint8_t qs[32];  // low 8 bits of codes
  uint16_t qh[8];  // of 32 columns: the high 3 bits of four codes, the scale in 3 bits, the side

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    const int high = qh[b];
    out->scale[0] = out->scale[1] = Iq1Scale(d, GetBits(high, 12, 3));
    for (int i = 0; i < 4; ++i)
      PutIq1(kGridIq1[qs[4 * b + i] | GetBits(high, 3 * i, 3) << 8], high >> 15 != 0, out->value + 8 * i);
  }
};
static_assert(sizeof(BlockIq1S) == 50);

struct BlockIq1M {
  static constexpr DType kDType = DType::kIq1M;
  static constexpr int kElements = 256, kGroup = 16, kReach = 17;
  uint8_t qs[32];      // low 8 bits of codes
  uint8_t qh[16];      // of a code, the first in the low nibble: 3 high bits, and the side
  uint16_t scales[4];  // four scales of 16 columns in 3 bits each; the top four bits together are d, as f16

  uint16_t D() const {
    return static_cast<uint16_t>(scales[0] >> 12 | (scales[1] >> 8 & 0xf0) | (scales[2] >> 4 & 0xf00) |
                                 (scales[3] & 0xf000));
  }
  uint16_t LargestScale() const { return D() & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    const uint16_t d = D();
    for (int half = 0; half < 2; ++half)
      out->scale[half] = Iq1Scale(d, GetBits(scales[b / 2], 3 * (2 * (b % 2) + half), 3));
    for (int i = 0; i < 4; ++i) {
      const int high = GetBits(qh[2 * b + i / 2], 4 * (i % 2), 4);
      PutIq1(kGridIq1[qs[4 * b + i] | (high & 7) << 8], high >> 3 != 0, out->value + 8 * i);
    }
  }
};
static_assert(sizeof(BlockIq1M) == 56);

}  // namespace celer
