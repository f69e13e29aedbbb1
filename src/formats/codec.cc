#include "formats/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "formats/bfloat16.h"
#include "formats/blocks.h"
#include "formats/fit.h"
#include "formats/float16.h"
#include "formats/float8.h"
#include "formats/k_quantize.h"
#include "formats/scaled_blocks.h"

namespace celer {
namespace {

template <class T, float (*ToFloat)(T)>
void DecodePlain(const std::byte* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = ToFloat(value);
  }
}

template <class T, T (*FromFloat)(float)>
void EncodePlain(const float* in, int64_t n, std::byte* out, const float* /*importance*/) {
  for (int64_t i = 0; i < n; ++i) {
    const T value = FromFloat(in[i]);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

template <class T>
float Cast(T value) {
  return static_cast<float>(value);
}
float FromBool(uint8_t value) {
  return value ? 1.0f : 0.0f;
}
float Same(float value) {
  return value;
}

template <class Block>
constexpr int kRuns = Block::kElements / 16;

template <class Block>
void DecodeBlocks(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    const auto block = LoadBlock<Block>(in, b);
    for (int g = 0; g < Block::kElements / Block::kGroup; ++g) {
      float scale = F16ToFloat(block.d), min = 0;
      if constexpr (kIsSuper<Block>) scale *= static_cast<float>(block.Scale(g));
      if constexpr (requires { block.m; }) min = F16ToFloat(block.m);
      if constexpr (requires { block.dmin; })
        min = -(F16ToFloat(block.dmin) * static_cast<float>(block.Min(g)));
      for (int r = 0; r < Block::kGroup / 16; ++r, out += 16)
        for (int j = 0; j < 16; ++j) {
          out[j] = scale * static_cast<float>(block.Value(Block::kGroup / 16 * g + r, j));
          if constexpr (kHasMin<Block>) out[j] += min;
        }
    }
  }
}

template <class Block, class Integer>
void PutValues(const Integer* values, int offset, Block* block) {
  for (int run = 0; run < kRuns<Block>; ++run)
    for (int j = 0; j < 16; ++j) block->Put(run, j, values[16 * run + j] - offset);
}

// The value farthest from zero becomes the lowest one, so that it is exact on whichever side it lies.
template <class Block>
void EncodeSymmetric(const float* x, const float* importance, Block* block) {
  constexpr int kHalf = kMostValue<Block>, kN = Block::kElements;
  float extreme = x[0];
  for (int j = 1; j < kN; ++j)
    if (std::fabs(x[j]) > std::fabs(extreme)) extreme = x[j];
  float d = extreme / -static_cast<float>(kHalf);
  if (importance) d = F16ToFloat(FloatToF16(FitSymmetric(x, kN, kHalf, importance)));
  const float inverse = ReciprocalOrZero(d);
  block->d = FloatToF16(d);
  uint8_t codes[kN];
  for (int j = 0; j < kN; ++j)
    codes[j] = static_cast<uint8_t>(TruncateClamped(x[j] * inverse + (kHalf + 0.5f), 0, Block::kLevels));
  PutValues(codes, kHalf, block);
}

template <class Block>
void EncodeAffine(const float* x, const float* importance, Block* block) {
  constexpr int kN = Block::kElements;
  const auto [low, high] = std::minmax_element(x, x + kN);
  float d = (*high - *low) / static_cast<float>(Block::kLevels), min = *low;
  if (importance) {
    const AffineFit fit = FitAffine(x, kN, Block::kLevels, importance);
    d = F16ToFloat(FloatToF16(fit.scale));
    min = F16ToFloat(FloatToF16(fit.min));
  }
  const float inverse = ReciprocalOrZero(d);
  block->d = FloatToF16(d);
  block->m = FloatToF16(min);
  uint8_t codes[kN];
  for (int j = 0; j < kN; ++j)
    codes[j] = static_cast<uint8_t>(TruncateClamped((x[j] - min) * inverse + 0.5f, 0, Block::kLevels));
  PutValues(codes, 0, block);
}

template <class Block>
void EncodeSuper(const float* x, const float* importance, Block* block) {
  constexpr int kGroups = Block::kElements / Block::kGroup;
  const auto from = [&] {
    if constexpr (kHasMin<Block>)
      return QuantizeKAffine(x, importance, kGroups, Block::kLevels, Block::kTop);
    else
      return QuantizeKSymmetric(x, importance, kMostValue<Block>, Block::kTop);
  }();
  static_assert(kHasMin<Block> || kGroups == kMaxKGroups);
  block->d = from.d;
  if constexpr (kHasMin<Block>) block->dmin = from.dmin;
  for (int g = 0; g < kGroups; ++g) {
    block->PutScale(g, from.scale[g]);
    if constexpr (kHasMin<Block>) block->PutMin(g, from.min[g]);
  }
  PutValues(from.q, 0, block);
}

template <class Block>
void EncodeBlocks(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += Block::kElements) {
    const float* its_importance = importance ? importance + b * Block::kElements : nullptr;
    Block block = {};
    if constexpr (requires { block.Encode(in, its_importance); })
      block.Encode(in, its_importance);
    else if constexpr (kIsSuper<Block>)
      EncodeSuper(in, its_importance, &block);
    else if constexpr (kHasMin<Block>)
      EncodeAffine(in, its_importance, &block);
    else
      EncodeSymmetric(in, its_importance, &block);
    StoreBlock(block, b, out);
  }
}

// Code 0 is the lowest value.
template <class Block>
void SetCodesOfBlocks(const uint8_t* codes, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, codes += Block::kElements) {
    auto block = LoadBlock<Block>(out, b);
    PutValues(codes, kHasMin<Block> ? 0 : (Block::kLevels + 1) / 2, &block);
    StoreBlock(block, b, out);
  }
}

template <class Block>
void Unpack(const std::byte* in, int64_t b, UnpackedBlock* out) {
  const auto block = LoadBlock<Block>(in, b);
  out->scale = block.d;
  if constexpr (requires { block.m; }) out->min = block.m;
  if constexpr (requires { block.dmin; }) out->min = block.dmin;
  if constexpr (kIsSuper<Block>)
    for (int g = 0; g < Block::kElements / Block::kGroup; ++g) {
      out->sub_scale[g] = static_cast<int8_t>(block.Scale(g));
      if constexpr (kHasMin<Block>) out->sub_min[g] = static_cast<uint8_t>(block.Min(g));
    }
  for (int run = 0; run < kRuns<Block>; ++run)
    for (int j = 0; j < 16; ++j) out->value[16 * run + j] = static_cast<int8_t>(block.Value(run, j));
}

// Of groups of 32 without a minimum.
template <class Block>
void UnpackGroup(const std::byte* row, int64_t b, Scaled32* out) {
  constexpr int kParts = Block::kElements / 32;
  const auto block = LoadBlock<Block>(row, b / kParts);
  const int g = static_cast<int>(b % kParts);
  float scale = F16ToFloat(block.d);
  if constexpr (kIsSuper<Block>) scale *= static_cast<float>(block.Scale(g));
  out->scale[0] = out->scale[1] = scale;
  for (int i = 0; i < 32; ++i) out->value[i] = static_cast<int8_t>(block.Value(2 * g + i / 16, i % 16));
}

template <class Block>
uint16_t LargestScale(const std::byte* in, int64_t blocks) {
  int largest = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto block = LoadBlock<Block>(in, b);
    largest = std::max(largest, block.d & 0x7fff);
    if constexpr (requires { block.m; }) largest = std::max(largest, block.m & 0x7fff);
    if constexpr (requires { block.dmin; }) largest = std::max(largest, block.dmin & 0x7fff);
  }
  return static_cast<uint16_t>(largest);
}

template <class Block>
constexpr Codec CodecOf() {
  Codec out{Block::kDType, DecodeBlocks<Block>, EncodeBlocks<Block>};
  out.bits = Block::kBits;
  out.has_min = kHasMin<Block>;
  out.group = Block::kGroup;
  out.levels = Block::kLevels;
  out.reach = kMostValue<Block> + (kHasMin<Block> ? 1 : 0);
  if constexpr (kIsSuper<Block>) {
    out.subs = Block::kElements / Block::kGroup;
    out.reach *= Block::kTop;
    out.narrow = Block::kNarrow;
  }
  if constexpr (Block::kLevels > 0) out.set_codes = SetCodesOfBlocks<Block>;
  out.unpack = Unpack<Block>;
  if constexpr (!kHasMin<Block> && Block::kGroup == 32) out.unpack32 = UnpackGroup<Block>;
  out.largest_scale = LargestScale<Block>;
  return out;
}
template <class... Block>
constexpr std::array<Codec, sizeof...(Block)> CodecsOf(BlockList<Block...>) {
  return {CodecOf<Block>()...};
}

// Of scaled_blocks.h.
template <class Block>
void UnpackScaled(const std::byte* row, int64_t b, Scaled32* out) {
  constexpr int kParts = Block::kElements / 32;
  LoadBlock<Block>(row, b / kParts).Unpack(static_cast<int>(b % kParts), out);
}

template <class Block>
void DecodeScaled(const std::byte* in, int64_t blocks, float* out) {
  Scaled32 part;
  for (int64_t b = 0; b < blocks * Block::kElements / 32; ++b, out += 32) {
    UnpackScaled<Block>(in, b, &part);
    for (int i = 0; i < 32; ++i) out[i] = part.scale[i / 16] * static_cast<float>(part.value[i]);
  }
}

template <class Block>
uint16_t LargestScaled(const std::byte* in, int64_t blocks) {
  uint16_t largest = 0;
  for (int64_t b = 0; b < blocks; ++b) largest = std::max(largest, LoadBlock<Block>(in, b).LargestScale());
  return largest;
}

template <class Block>
constexpr Codec ScaledCodecOf() {
  Codec out{Block::kDType, DecodeScaled<Block>, nullptr};
  if constexpr (requires(Block b) { b.Encode(nullptr, nullptr); }) out.encode = EncodeBlocks<Block>;
  out.bits = 8;
  out.group = Block::kGroup;
  out.unpack32 = UnpackScaled<Block>;
  if constexpr (requires { Block::kReach; }) {
    out.reach = Block::kReach;
    out.largest_scale = LargestScaled<Block>;
  }
  return out;
}
template <class... Block>
constexpr std::array<Codec, sizeof...(Block)> ScaledCodecsOf(BlockList<Block...>) {
  return {ScaledCodecOf<Block>()...};
}

constexpr Codec kPlain[] = {
    {DType::kF32, DecodePlain<float, Same>, EncodePlain<float, Same>},
    {DType::kF16, DecodePlain<uint16_t, F16ToFloat>, EncodePlain<uint16_t, FloatToF16>},
    {DType::kBf16, DecodePlain<uint16_t, Bf16ToFloat>, EncodePlain<uint16_t, FloatToBf16>},
    {DType::kFp8E4M3, DecodePlain<uint8_t, Fp8E4M3ToFloat>, EncodePlain<uint8_t, FloatToFp8E4M3>},
    {DType::kF64, DecodePlain<double, Cast<double>>, nullptr},
    {DType::kI8, DecodePlain<int8_t, Cast<int8_t>>, nullptr},
    {DType::kU8, DecodePlain<uint8_t, Cast<uint8_t>>, nullptr},
    {DType::kI16, DecodePlain<int16_t, Cast<int16_t>>, nullptr},
    {DType::kI32, DecodePlain<int32_t, Cast<int32_t>>, nullptr},
    {DType::kI64, DecodePlain<int64_t, Cast<int64_t>>, nullptr},
    {DType::kBool, DecodePlain<uint8_t, FromBool>, nullptr},
};
constexpr auto kBlocks = CodecsOf(GgufBlocks{});
constexpr auto kScaled = ScaledCodecsOf(ScaledBlocks{});

const Codec* Find(std::span<const Codec> codecs, DType dtype) {
  for (const Codec& codec : codecs)
    if (codec.dtype == dtype) return &codec;
  return nullptr;
}

}  // namespace

const Codec* FindBlockCodec(DType dtype) {
  return Find(kBlocks, dtype);
}

const Codec* FindCodec(DType dtype) {
  for (const std::span<const Codec> codecs :
       {std::span<const Codec>(kBlocks), std::span<const Codec>(kScaled)})
    if (const Codec* codec = Find(codecs, dtype)) return codec;
  return Find(kPlain, dtype);
}

}  // namespace celer
