#include "formats/q2_k.h"

#include <algorithm>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

void DecodeQ2_K(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ2_K::kElements) {
    const auto block = LoadBlock<BlockQ2_K>(in, b);
    const float d = F16ToFloat(block.d);
    const float dmin = F16ToFloat(block.dmin);
    for (int g = 0; g < 16; ++g) {  // groups of 16 elements
      const float scale = d * static_cast<float>(block.scales[g] & 15);
      const float min = dmin * static_cast<float>(block.scales[g] >> 4);
      const uint8_t* qs = block.qs + 32 * (g / 8) + 16 * (g % 2);
      const int shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) out[16 * g + i] = scale * static_cast<float>(qs[i] >> shift & 3) - min;
    }
  }
}

void EncodeQ2_K(const float* in, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ2_K::kElements) {
    AffineFit fits[16];
    float max_scale = 0, max_min = 0;
    for (int g = 0; g < 16; ++g) {
      fits[g] = FitAffineNonPositive(in + 16 * g, 16, 3);
      max_scale = std::max(max_scale, fits[g].scale);
      max_min = std::max(max_min, -fits[g].min);
    }
    BlockQ2_K block = {};
    block.d = FloatToF16(max_scale / 15.0f);
    block.dmin = FloatToF16(max_min / 15.0f);
    const float d = F16ToFloat(block.d);
    const float dmin = F16ToFloat(block.dmin);
    for (int g = 0; g < 16; ++g) {
      const int scale = RoundClamped(fits[g].scale * ReciprocalOrZero(d), 0, 15);
      const int min = RoundClamped(-fits[g].min * ReciprocalOrZero(dmin), 0, 15);
      block.scales[g] = static_cast<uint8_t>(scale | min << 4);
      const float inverse = ReciprocalOrZero(d * static_cast<float>(scale));
      uint8_t* qs = block.qs + 32 * (g / 8) + 16 * (g % 2);
      const int shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) {
        const int q = RoundClamped((in[16 * g + i] + dmin * static_cast<float>(min)) * inverse, 0, 3);
        qs[i] = static_cast<uint8_t>(qs[i] | q << shift);
      }
    }
    StoreBlock(block, b, out);
  }
}

}  // namespace celer
