// GGUF MXFP4: 32 elements in 17 bytes, 4.25 bits each. w = 2^(e - 128) * level[q], levels of fp4 E2M1 times two.
// gpt-oss publishes its experts so; Hugging Face files hold the same numbers apart (weights/published/mxfp4.cc).
//
// It is not one of blocks.h: those have scales in f16, and these do not fit there.
#pragma once

#include <cmath>
#include <cstdint>

#include "formats/block_io.h"

namespace celer {

struct BlockMxfp4 {
  static constexpr DType kDType = DType::kMxfp4;
  static constexpr int kElements = 32, kGroup = 32;
  uint8_t e;       // E8M0
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  static constexpr int Level(int q) {
    return static_cast<int8_t>("\0\1\2\3\4\6\x8\xc\0\xff\xfe\xfd\xfc\xfa\xf8\xf4"[q]);
  }
  constexpr int Code(int j) const { return GetBits(qs[j % 16], j < 16 ? 0 : 4, 4); }
  constexpr int Value(int j) const { return Level(Code(j)); }
  float Scale() const { return std::ldexp(1.0f, e - 128); }
  void Unpack(int, Scaled32* out) const {
    out->scale[0] = out->scale[1] = Scale();
    for (int j = 0; j < kElements; ++j) out->value[j] = static_cast<int8_t>(Value(j));
  }
  // Of three powers of two, from below the one whose largest magnitude is between 4 and 8 on, the one that loses least.
  void Encode(const float* x, const float* importance);
};
static_assert(sizeof(BlockMxfp4) == 17);

}  // namespace celer
