#include "formats/q2_k.h"

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/k_quantize.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ2_K* block) {
  std::memset(block->qs, 0, sizeof(block->qs));
  for (int g = 0; g < 16; ++g) {
    uint8_t* qs = block->qs + 32 * (g / 8) + 16 * (g % 2);
    const int shift = 2 * (g / 2 % 4);
    for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>(qs[i] | codes[16 * g + i] << shift);
  }
}

}  // namespace

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

void EncodeQ2_K(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ2_K::kElements) {
    const KAffineBlock from =
        QuantizeKAffine(in, importance ? importance + b * BlockQ2_K::kElements : nullptr, 16, 3, 15);
    BlockQ2_K block = {};
    block.d = from.d;
    block.dmin = from.dmin;
    for (int g = 0; g < 16; ++g) block.scales[g] = static_cast<uint8_t>(from.scale[g] | from.min[g] << 4);
    Pack(from.q, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ2_K(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ2_K>(codes, blocks, out, Pack);
}

}  // namespace celer
