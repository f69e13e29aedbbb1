#include "formats/q3_k.h"

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/k_quantize.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ3_K* block) {
  std::memset(block->qs, 0, sizeof(block->qs));
  std::memset(block->hmask, 0, sizeof(block->hmask));
  for (int g = 0; g < 16; ++g) {
    uint8_t* qs = block->qs + 32 * (g / 8) + 16 * (g % 2);
    uint8_t* mask = block->hmask + 16 * (g % 2);
    const int shift = 2 * (g / 2 % 4);
    for (int i = 0; i < 16; ++i) {
      const int q = codes[16 * g + i];
      qs[i] = static_cast<uint8_t>(qs[i] | (q & 3) << shift);
      mask[i] = static_cast<uint8_t>(mask[i] | (q >> 2) << (g / 2));
    }
  }
}

}  // namespace

void DecodeQ3_K(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ3_K::kElements) {
    const auto block = LoadBlock<BlockQ3_K>(in, b);
    const float d = F16ToFloat(block.d);
    for (int g = 0; g < 16; ++g) {  // groups of 16 elements
      const int low = block.scales[g % 8] >> (4 * (g / 8)) & 15;
      const int high = block.scales[8 + g % 4] >> (2 * (g / 4)) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const uint8_t* qs = block.qs + 32 * (g / 8) + 16 * (g % 2);
      const uint8_t* mask = block.hmask + 16 * (g % 2);
      const int shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) {
        const int q = (qs[i] >> shift & 3) - ((mask[i] >> (g / 2) & 1) ? 0 : 4);
        out[16 * g + i] = scale * static_cast<float>(q);
      }
    }
  }
}

void EncodeQ3_K(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ3_K::kElements) {
    const KSymmetricBlock from =
        QuantizeKSymmetric(in, importance ? importance + b * BlockQ3_K::kElements : nullptr, 4, 32);
    BlockQ3_K block = {};
    block.d = from.d;
    for (int g = 0; g < 16; ++g) {
      const int code = from.scale[g] + 32;
      block.scales[g % 8] = static_cast<uint8_t>(block.scales[g % 8] | (code & 15) << (4 * (g / 8)));
      block.scales[8 + g % 4] = static_cast<uint8_t>(block.scales[8 + g % 4] | (code >> 4) << (2 * (g / 4)));
    }
    uint8_t codes[BlockQ3_K::kElements];
    for (int i = 0; i < BlockQ3_K::kElements; ++i) codes[i] = static_cast<uint8_t>(from.q[i] + 4);
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ3_K(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ3_K>(codes, blocks, out, Pack);
}

}  // namespace celer
