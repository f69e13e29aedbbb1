#include "formats/q6_k.h"

#include "formats/block_io.h"
#include "formats/float16.h"
#include "formats/k_quantize.h"

namespace celer {

namespace {

void Pack(const uint8_t* codes, BlockQ6_K* block) {
  std::memset(block->ql, 0, sizeof(block->ql));
  std::memset(block->qh, 0, sizeof(block->qh));
  for (int g = 0; g < 16; ++g) {
    uint8_t* ql = block->ql + 64 * (g / 8) + 16 * (g % 4);
    uint8_t* qh = block->qh + 32 * (g / 8) + 16 * (g % 2);
    const int low_shift = 4 * (g / 4 % 2);
    const int high_shift = 2 * (g / 2 % 4);
    for (int i = 0; i < 16; ++i) {
      const int q = codes[16 * g + i];
      ql[i] = static_cast<uint8_t>(ql[i] | (q & 15) << low_shift);
      qh[i] = static_cast<uint8_t>(qh[i] | (q >> 4) << high_shift);
    }
  }
}

}  // namespace

void DecodeQ6_K(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BlockQ6_K::kElements) {
    const auto block = LoadBlock<BlockQ6_K>(in, b);
    const float d = F16ToFloat(block.d);
    for (int g = 0; g < 16; ++g) {  // groups of 16 elements
      const float scale = d * static_cast<float>(block.scales[g]);
      const uint8_t* ql = block.ql + 64 * (g / 8) + 16 * (g % 4);
      const uint8_t* qh = block.qh + 32 * (g / 8) + 16 * (g % 2);
      const int low_shift = 4 * (g / 4 % 2);
      const int high_shift = 2 * (g / 2 % 4);
      for (int i = 0; i < 16; ++i) {
        const int q = (ql[i] >> low_shift & 15) | (qh[i] >> high_shift & 3) << 4;
        out[16 * g + i] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

void EncodeQ6_K(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += BlockQ6_K::kElements) {
    const KSymmetricBlock from =
        QuantizeKSymmetric(in, importance ? importance + b * BlockQ6_K::kElements : nullptr, 32, 128);
    BlockQ6_K block = {};
    block.d = from.d;
    for (int g = 0; g < 16; ++g) block.scales[g] = from.scale[g];
    uint8_t codes[BlockQ6_K::kElements];
    for (int i = 0; i < BlockQ6_K::kElements; ++i) codes[i] = static_cast<uint8_t>(from.q[i] + 32);
    Pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

void SetCodesQ6_K(const uint8_t* codes, int64_t blocks, std::byte* out) {
  ReplaceCodes<BlockQ6_K>(codes, blocks, out, Pack);
}

}  // namespace celer
