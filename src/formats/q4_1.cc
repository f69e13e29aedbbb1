#include "formats/q4_1.h"

#include <algorithm>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ4_1* block) {
  PackNibbles(codes, block->qs);
}

}  // namespace

void DecodeQ4_1(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ4_1::kElements) {
    const auto block = LoadBlock<BlockQ4_1>(in, b);
    const float d = F16ToFloat(block.d);
    const float m = F16ToFloat(block.m);
    for (int j = 0; j < 16; ++j) {
      out[j] = d * static_cast<float>(block.qs[j] & 15) + m;
      out[j + 16] = d * static_cast<float>(block.qs[j] >> 4) + m;
    }
  }
}

void EncodeQ4_1(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ4_1::kElements) {
    const auto [low_at, high_at] = std::minmax_element(in, in + BlockQ4_1::kElements);
    float d = (*high_at - *low_at) / 15.0f, min = *low_at;
    BlockQ4_1 block;
    if (importance) {
      const AffineFit fit = FitAffine(in, BlockQ4_1::kElements, 15, importance + b * BlockQ4_1::kElements);
      d = F16ToFloat(FloatToF16(fit.scale));
      min = F16ToFloat(FloatToF16(fit.min));
    }
    const float inverse = ReciprocalOrZero(d);
    block.d = FloatToF16(d);
    block.m = FloatToF16(min);
    uint8_t codes[BlockQ4_1::kElements];
    for (int j = 0; j < BlockQ4_1::kElements; ++j)
      codes[j] = static_cast<uint8_t>(TruncateClamped((in[j] - min) * inverse + 0.5f, 0, 15));
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ4_1(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ4_1>(codes, blocks, out, Pack);
}

}  // namespace celer
