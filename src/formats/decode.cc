#include "formats/decode.h"

#include <array>

#include "base/check.h"
#include "formats/codec.h"
#include "formats/scaled_blocks.h"

namespace celer {
namespace {

template <class... Block>
constexpr std::array<DType, 4 + sizeof...(Block)> TypesOf(BlockList<Block...>) {
  return {DType::kF32, DType::kF16, DType::kBf16, Block::kDType..., DType::kMxfp4};
}
constexpr auto kWeightTypes = TypesOf(GgufBlocks{});
template <class... Block>
constexpr std::array<DType, sizeof...(Block)> ReadOnlyTypesOf(BlockList<Block...>) {
  return {Block::kDType...};
}
constexpr auto kReadOnlyTypes = ReadOnlyTypesOf(ReadOnlyBlocks{});

}  // namespace

std::span<const DType> WeightTypes() {
  return kWeightTypes;
}

std::span<const DType> BlockTypes() {
  return WeightTypes().subspan(3);
}

std::span<const DType> ReadOnlyBlockTypes() {
  return kReadOnlyTypes;
}

bool CanDecode(DType dtype) {
  return FindCodec(dtype) != nullptr;
}

bool CanEncode(DType dtype) {
  const Codec* codec = FindCodec(dtype);
  return codec && codec->encode;
}

void DecodeRow(DType dtype, const std::byte* row, int64_t cols, float* out) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->decode(row, cols / Info(dtype).block, out);
}

void EncodeRow(DType dtype, const float* row, int64_t cols, std::byte* out, const float* importance) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr && codec->encode != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->encode(row, cols / Info(dtype).block, out, importance);
}

BlockGrid GridOf(DType dtype) {
  const Codec* codec = FindCodec(dtype);
  return codec && codec->levels > 0 ? BlockGrid{codec->group, codec->levels} : BlockGrid{};
}

void SetCodes(DType dtype, const uint8_t* codes, int64_t cols, std::byte* row) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr && codec->set_codes != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->set_codes(codes, cols / Info(dtype).block, row);
}

}  // namespace celer
