// GGUF Q8_0: 32 elements in 34 bytes, 8.5 bits each. w = d * q
#pragma once

#include "formats/block_io.h"

namespace celer {

struct BlockQ8_0 {
  static constexpr DType kDType = DType::kQ8_0;
  static constexpr int kElements = 32, kGroup = 32, kBits = 8, kLevels = 254;  // -127..127 are written
  uint16_t d;                                                                  // f16 scale
  int8_t qs[32];

  constexpr int Value(int run, int j) const { return qs[16 * run + j]; }
  constexpr void Put(int run, int j, int value) { qs[16 * run + j] = static_cast<int8_t>(value); }
  // Fine enough without importance, which is not looked at.
  void Encode(const float* x, const float* importance);
};
static_assert(sizeof(BlockQ8_0) == 34);

}  // namespace celer
