#include "formats/q8_0.h"

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ8_0* block) {
  for (int j = 0; j < BlockQ8_0::kElements; ++j) block->qs[j] = static_cast<int8_t>(codes[j] - 127);
}

}  // namespace

void DecodeQ8_0(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ8_0::kElements) {
    const auto block = LoadBlock<BlockQ8_0>(in, b);
    const float d = F16ToFloat(block.d);
    for (int j = 0; j < BlockQ8_0::kElements; ++j) out[j] = d * static_cast<float>(block.qs[j]);
  }
}

void EncodeQ8_0(const float* in, int64_t blocks, std::byte* out, const float* /*importance*/) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ8_0::kElements) {
    const float d = AbsMax(in, BlockQ8_0::kElements) / 127.0f;
    const float inverse = ReciprocalOrZero(d);
    BlockQ8_0 block;
    block.d = FloatToF16(d);
    for (int j = 0; j < BlockQ8_0::kElements; ++j)
      block.qs[j] = static_cast<int8_t>(RoundClamped(in[j] * inverse, -127, 127));
    StoreBlock(block, b, out);
  }
}

void SetCodesQ8_0(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ8_0>(codes, blocks, out, Pack);
}

}  // namespace celer
