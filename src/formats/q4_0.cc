#include "formats/q4_0.h"

#include <cmath>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ4_0* block) {
  PackNibbles(codes, block->qs);
}

}  // namespace

void DecodeQ4_0(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ4_0::kElements) {
    const auto block = LoadBlock<BlockQ4_0>(in, b);
    const float d = F16ToFloat(block.d);
    for (int j = 0; j < 16; ++j) {
      out[j] = d * static_cast<float>((block.qs[j] & 15) - 8);
      out[j + 16] = d * static_cast<float>((block.qs[j] >> 4) - 8);
    }
  }
}

void EncodeQ4_0(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ4_0::kElements) {
    // The value farthest from zero becomes -8, so that it is exact on whichever side it lies.
    float extreme = in[0];
    for (int j = 1; j < BlockQ4_0::kElements; ++j)
      if (std::fabs(in[j]) > std::fabs(extreme)) extreme = in[j];
    float d = extreme / -8.0f;
    if (importance)
      d = F16ToFloat(
          FloatToF16(FitSymmetric(in, BlockQ4_0::kElements, 8, importance + b * BlockQ4_0::kElements)));
    const float inverse = ReciprocalOrZero(d);
    BlockQ4_0 block;
    block.d = FloatToF16(d);
    uint8_t codes[BlockQ4_0::kElements];
    for (int j = 0; j < BlockQ4_0::kElements; ++j)
      codes[j] = static_cast<uint8_t>(TruncateClamped(in[j] * inverse + 8.5f, 0, 15));
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ4_0(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ4_0>(codes, blocks, out, Pack);
}

}  // namespace celer
