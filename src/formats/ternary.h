// GGUF TQ1_0 and TQ2_0: 256 elements of -1, 0 and 1 under one scale, in 1.69 and 2.06 bits each. w = d * value. Read only.
#pragma once

#include "formats/block_io.h"
#include "formats/float16.h"

namespace celer {

// Five trits in a byte: it is a fraction of 256 whose digits to the base of three they are.
struct BlockTq1_0 {
  static constexpr DType kDType = DType::kTq1_0;
  static constexpr int kElements = 256, kGroup = 32, kReach = 1;
  uint8_t qs[48];  // digit n of byte j: element 32n + j for the first 32, 160 + 16n + j - 32 for the others
  uint8_t qh[4];   // the last 16 elements: digit n of byte j is 240 + 4n + j
  uint16_t d;      // f16

  static constexpr int8_t Digit(int byte, int n) {
    for (; n > 0; --n) byte = 3 * byte & 255;
    return static_cast<int8_t>((3 * byte >> 8) - 1);
  }
  constexpr int8_t Value(int i) const {
    if (i < 160) return Digit(qs[i % 32], i / 32);
    if (i < 240) return Digit(qs[32 + i % 16], (i - 160) / 16);
    return Digit(qh[i % 4], (i - 240) / 4);
  }
  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    out->scale[0] = out->scale[1] = F16ToFloat(d);
    for (int i = 0; i < 32; ++i) out->value[i] = Value(32 * b + i);
  }
};
static_assert(sizeof(BlockTq1_0) == 54);

struct BlockTq2_0 {
  static constexpr DType kDType = DType::kTq2_0;
  static constexpr int kElements = 256, kGroup = 32, kReach = 2;  // the fourth code is 2
  uint8_t qs[64];  // 2 bits; byte 32h + j holds elements 128h + j + 32s at bits 2s, s = 0..3
  uint16_t d;      // f16

  uint16_t LargestScale() const { return d & 0x7fff; }
  void Unpack(int b, Scaled32* out) const {
    out->scale[0] = out->scale[1] = F16ToFloat(d);
    for (int i = 0; i < 32; ++i)
      out->value[i] = static_cast<int8_t>(GetBits(qs[32 * (b / 4) + i], 2 * (b % 4), 2) - 1);
  }
};
static_assert(sizeof(BlockTq2_0) == 66);

}  // namespace celer
