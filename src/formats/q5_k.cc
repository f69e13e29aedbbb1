#include "formats/q5_k.h"

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/k_quantize.h"
#include "formats/k_scales.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ5_K* block) {
  std::memset(block->qs, 0, sizeof(block->qs));
  std::memset(block->qh, 0, sizeof(block->qh));
  for (int g = 0; g < 8; ++g) {
    uint8_t* qs = block->qs + 32 * (g / 2);
    for (int i = 0; i < 32; ++i) {
      const int q = codes[32 * g + i];
      qs[i] = static_cast<uint8_t>(qs[i] | (q & 15) << (4 * (g % 2)));
      block->qh[i] = static_cast<uint8_t>(block->qh[i] | (q >> 4) << g);
    }
  }
}

}  // namespace

void DecodeQ5_K(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ5_K::kElements) {
    const auto block = LoadBlock<BlockQ5_K>(in, b);
    const float d = F16ToFloat(block.d);
    const float dmin = F16ToFloat(block.dmin);
    const KScales scales = UnpackKScales(block.scales);
    for (int g = 0; g < 8; ++g) {  // groups of 32 elements
      const float scale = d * static_cast<float>(scales.scale[g]);
      const float min = dmin * static_cast<float>(scales.min[g]);
      const uint8_t* qs = block.qs + 32 * (g / 2);
      const int shift = 4 * (g % 2);
      for (int i = 0; i < 32; ++i) {
        const int q = (qs[i] >> shift & 15) | (block.qh[i] >> g & 1) << 4;
        out[32 * g + i] = scale * static_cast<float>(q) - min;
      }
    }
  }
}

void EncodeQ5_K(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ5_K::kElements) {
    const KAffineBlock from =
        QuantizeKAffine(in, importance ? importance + b * BlockQ5_K::kElements : nullptr, 8, 31, 63);
    BlockQ5_K block = {};
    block.d = from.d;
    block.dmin = from.dmin;
    PackKScales(from.scale, from.min, block.scales);
    Pack(from.q, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ5_K(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ5_K>(codes, blocks, out, Pack);
}

}  // namespace celer
