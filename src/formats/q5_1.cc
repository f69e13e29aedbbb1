#include "formats/q5_1.h"

#include <algorithm>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ5_1* block) {
  PackFives(codes, block->qs, block->qh);
}

}  // namespace

void DecodeQ5_1(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ5_1::kElements) {
    const auto block = LoadBlock<BlockQ5_1>(in, b);
    const float d = F16ToFloat(block.d);
    const float m = F16ToFloat(block.m);
    uint32_t fifth;
    std::memcpy(&fifth, block.qh, sizeof(fifth));
    for (int j = 0; j < 16; ++j) {
      const int low = (block.qs[j] & 15) | static_cast<int>(fifth >> j & 1) << 4;
      const int high = block.qs[j] >> 4 | static_cast<int>(fifth >> (j + 16) & 1) << 4;
      out[j] = d * static_cast<float>(low) + m;
      out[j + 16] = d * static_cast<float>(high) + m;
    }
  }
}

void EncodeQ5_1(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ5_1::kElements) {
    const auto [low_at, high_at] = std::minmax_element(in, in + BlockQ5_1::kElements);
    float d = (*high_at - *low_at) / 31.0f, min = *low_at;
    BlockQ5_1 block;
    if (importance) {
      const AffineFit fit = FitAffine(in, BlockQ5_1::kElements, 31, importance + b * BlockQ5_1::kElements);
      d = F16ToFloat(FloatToF16(fit.scale));
      min = F16ToFloat(FloatToF16(fit.min));
    }
    const float inverse = ReciprocalOrZero(d);
    block.d = FloatToF16(d);
    block.m = FloatToF16(min);
    uint8_t codes[BlockQ5_1::kElements];
    for (int j = 0; j < BlockQ5_1::kElements; ++j)
      codes[j] = static_cast<uint8_t>(TruncateClamped((in[j] - min) * inverse + 0.5f, 0, 31));
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ5_1(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ5_1>(codes, blocks, out, Pack);
}

}  // namespace celer
