#include "formats/q5_0.h"

#include <cmath>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ5_0* block) {
  PackFives(codes, block->qs, block->qh);
}

}  // namespace

void DecodeQ5_0(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ5_0::kElements) {
    const auto block = LoadBlock<BlockQ5_0>(in, b);
    const float d = F16ToFloat(block.d);
    uint32_t fifth;
    std::memcpy(&fifth, block.qh, sizeof(fifth));
    for (int j = 0; j < 16; ++j) {
      const int low = (block.qs[j] & 15) | static_cast<int>(fifth >> j & 1) << 4;
      const int high = block.qs[j] >> 4 | static_cast<int>(fifth >> (j + 16) & 1) << 4;
      out[j] = d * static_cast<float>(low - 16);
      out[j + 16] = d * static_cast<float>(high - 16);
    }
  }
}

void EncodeQ5_0(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ5_0::kElements) {
    float extreme = in[0];  // becomes -16, as in Q4_0
    for (int j = 1; j < BlockQ5_0::kElements; ++j)
      if (std::fabs(in[j]) > std::fabs(extreme)) extreme = in[j];
    float d = extreme / -16.0f;
    if (importance)
      d = F16ToFloat(
          FloatToF16(FitSymmetric(in, BlockQ5_0::kElements, 16, importance + b * BlockQ5_0::kElements)));
    const float inverse = ReciprocalOrZero(d);
    BlockQ5_0 block;
    block.d = FloatToF16(d);
    uint8_t codes[BlockQ5_0::kElements];
    for (int j = 0; j < BlockQ5_0::kElements; ++j)
      codes[j] = static_cast<uint8_t>(TruncateClamped(in[j] * inverse + 16.5f, 0, 31));
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ5_0(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ5_0>(codes, blocks, out, Pack);
}

}  // namespace celer
