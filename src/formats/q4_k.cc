#include "formats/q4_k.h"

#include <algorithm>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"
#include "formats/k_scales.h"

namespace celer {

void DecodeQ4_K(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ4_K::kElements) {
    const auto block = LoadBlock<BlockQ4_K>(in, b);
    const float d = F16ToFloat(block.d);
    const float dmin = F16ToFloat(block.dmin);
    const KScales scales = UnpackKScales(block.scales);
    for (int g = 0; g < 8; ++g) {  // groups of 32 elements
      const float scale = d * static_cast<float>(scales.scale[g]);
      const float min = dmin * static_cast<float>(scales.min[g]);
      const uint8_t* qs = block.qs + 32 * (g / 2);
      const int shift = 4 * (g % 2);
      for (int i = 0; i < 32; ++i) out[32 * g + i] = scale * static_cast<float>(qs[i] >> shift & 15) - min;
    }
  }
}

void EncodeQ4_K(const float* in, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ4_K::kElements) {
    AffineFit fits[8];
    float max_scale = 0, max_min = 0;
    for (int g = 0; g < 8; ++g) {
      fits[g] = FitAffineNonPositive(in + 32 * g, 32, 15);
      max_scale = std::max(max_scale, fits[g].scale);
      max_min = std::max(max_min, -fits[g].min);
    }
    BlockQ4_K block = {};
    block.d = FloatToF16(max_scale / 63.0f);
    block.dmin = FloatToF16(max_min / 63.0f);
    const float d = F16ToFloat(block.d);
    const float dmin = F16ToFloat(block.dmin);
    KScales scales;
    for (int g = 0; g < 8; ++g) {
      scales.scale[g] = static_cast<uint8_t>(RoundClamped(fits[g].scale * ReciprocalOrZero(d), 0, 63));
      scales.min[g] = static_cast<uint8_t>(RoundClamped(-fits[g].min * ReciprocalOrZero(dmin), 0, 63));
      const float inverse = ReciprocalOrZero(d * static_cast<float>(scales.scale[g]));
      const float min = dmin * static_cast<float>(scales.min[g]);
      uint8_t* qs = block.qs + 32 * (g / 2);
      for (int i = 0; i < 32; ++i) {
        const int q = RoundClamped((in[32 * g + i] + min) * inverse, 0, 15);
        qs[i] = static_cast<uint8_t>(qs[i] | q << (4 * (g % 2)));
      }
    }
    PackKScales(scales, block.scales);
    StoreBlock(block, b, out);
  }
}

}  // namespace celer
