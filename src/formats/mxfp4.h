// GGUF MXFP4: 32 elements in 17 bytes, 4.25 bits each. w = 2^(e - 128) * level[q], levels of fp4 E2M1 times two.
// gpt-oss publishes its experts so; Hugging Face files hold the same numbers apart (weights/published/mxfp4.cc).
//
// It is not one of blocks.h: those have scales in f16, and these do not fit there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "formats/block_io.h"

namespace celer {

struct BlockMxfp4 {
  static constexpr int kElements = 32;
  uint8_t e;       // E8M0
  uint8_t qs[16];  // element j in the low nibble, j + 16 in the high one

  static constexpr int Level(int q) {
    return static_cast<int8_t>("\0\1\2\3\4\6\x8\xc\0\xff\xfe\xfd\xfc\xfa\xf8\xf4"[q]);
  }
  constexpr int Code(int j) const { return GetBits(qs[j % 16], j < 16 ? 0 : 4, 4); }
  constexpr int Value(int j) const { return Level(Code(j)); }
  float Scale() const { return std::ldexp(1.0f, e - 128); }
};
static_assert(sizeof(BlockMxfp4) == 17);

inline void DecodeMxfp4(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    const auto block = LoadBlock<BlockMxfp4>(in, b);
    const float scale = block.Scale();
    for (int j = 0; j < BlockMxfp4::kElements; ++j) *out++ = scale * static_cast<float>(block.Value(j));
  }
}

// As the reference quantizer does: the power of two that has the largest magnitude between its 4 and 8.
inline void EncodeMxfp4(const float* in, int64_t blocks, std::byte* out, const float* /*importance*/) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockMxfp4::kElements) {
    float most = 0;
    for (int j = 0; j < BlockMxfp4::kElements; ++j) most = std::fmax(most, std::fabs(in[j]));
    BlockMxfp4 block = {};
    if (most > 0) block.e = static_cast<uint8_t>(std::clamp(std::ilogb(most) + 125, 0, 254));
    const float scale = block.Scale();
    for (int j = 0; j < BlockMxfp4::kElements; ++j) {
      int nearest = 0;
      float least = std::numeric_limits<float>::infinity();
      for (int q = 0; q < 16; ++q) {
        const float off = std::fabs(scale * static_cast<float>(BlockMxfp4::Level(q)) - in[j]);
        if (off < least) least = off, nearest = q;
      }
      SetBits(&block.qs[j % 16], j < 16 ? 0 : 4, 4, nearest);
    }
    StoreBlock(block, b, out);
  }
}

}  // namespace celer
