#include "formats/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/blocks.h"
#include "formats/codec.h"
#include "formats/float16.h"
#include "formats/scaled_blocks.h"
#include "formats/test_rows.h"

namespace celer {
namespace {

std::vector<float> Normal(size_t n, float sigma, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

std::vector<float> RoundTrip(DType dtype, const std::vector<float>& row) {
  std::vector<std::byte> bytes(static_cast<size_t>(*BytesFor(dtype, static_cast<int64_t>(row.size()))));
  EncodeRow(dtype, row.data(), static_cast<int64_t>(row.size()), bytes.data());
  std::vector<float> out(row.size());
  DecodeRow(dtype, bytes.data(), static_cast<int64_t>(row.size()), out.data());
  return out;
}

TEST(Decode, EveryTypeOfAFileDecodes) {
  for (int i = 0; i <= static_cast<int>(DType::kQ6_K); ++i)
    EXPECT_TRUE(CanDecode(static_cast<DType>(i))) << Name(static_cast<DType>(i));
  for (const DType dtype : BlockTypes()) EXPECT_TRUE(CanEncode(dtype)) << Name(dtype);
  for (const DType dtype : ReadOnlyBlockTypes()) {
    EXPECT_TRUE(CanDecode(dtype)) << Name(dtype);
    EXPECT_FALSE(CanEncode(dtype)) << Name(dtype);
  }
  for (const DTypeInfo& info : DTypes())
    EXPECT_TRUE(info.gguf_type < 0 || CanDecode(info.dtype)) << info.name;
  EXPECT_FALSE(CanEncode(DType::kI64));
}

template <class... Block>
void ExpectFactsOf(BlockList<Block...>) {
  const auto expect = [](const DTypeInfo& info, int elements, size_t bytes) {
    EXPECT_EQ(info.block, elements) << info.name;
    EXPECT_EQ(static_cast<size_t>(info.block_bytes), bytes) << info.name;
    EXPECT_GE(info.gguf_type, 0) << info.name;
    EXPECT_GE(info.gguf_file_type, 0) << info.name;
  };
  (expect(Info(Block::kDType), Block::kElements, sizeof(Block)), ...);
}
TEST(Codec, StructsAreWhatTheTableOfTypesSays) {
  ExpectFactsOf(GgufBlocks{});
  ExpectFactsOf(ScaledBlocks{});
}

// The integers that products use, against the floats of a row; and how far these reach.
TEST(Codec, UnpackedBlocksAreTheDecodedOnes) {
  for (const DType dtype : BlockTypes()) {
    if (dtype == DType::kMxfp4) continue;  // its scale is no f16
    const Codec& codec = *FindBlockCodec(dtype);
    const int elements = Info(dtype).block;
    const auto row = Normal(static_cast<size_t>(elements) * 3, 0.05f, 7);
    std::vector<std::byte> bytes(*BytesFor(dtype, elements * 3));
    EncodeRow(dtype, row.data(), elements * 3, bytes.data());
    std::vector<float> decoded(row.size());
    DecodeRow(dtype, bytes.data(), elements * 3, decoded.data());
    for (int b = 0; b < 3; ++b) {
      UnpackedBlock block = {};
      codec.unpack(bytes.data(), b, &block);
      const float d = F16ToFloat(block.scale), m = F16ToFloat(block.min);
      const float largest = F16ToFloat(codec.largest_scale(bytes.data() + b * Info(dtype).block_bytes, 1));
      EXPECT_EQ(largest, std::max(std::fabs(d), std::fabs(m))) << Name(dtype);
      for (int i = 0; i < elements; ++i) {
        const float scale = codec.subs > 0 ? d * block.sub_scale[i / codec.group] : d;
        const float min = codec.subs > 0 ? -m * block.sub_min[i / codec.group] : m;
        const float value = decoded[b * elements + i];
        ASSERT_NEAR(value, scale * block.value[i] + min, 1e-6) << Name(dtype) << " element " << i;
        ASSERT_LE(std::fabs(value), largest * static_cast<float>(codec.reach)) << Name(dtype);
      }
    }
  }
}

// The same of those whose scales are floats or belong to 16 columns: exactly.
TEST(Codec, Unpacked32AreTheDecodedOnes) {
  constexpr int64_t kCols = 768;
  for (const DType dtype : AllBlockTypes()) {
    const Codec& codec = *FindCodec(dtype);
    if (!codec.unpack32) continue;
    const auto row = RandomWeightRow(dtype, kCols, 8, 0.1f);
    std::vector<float> decoded(kCols);
    DecodeRow(dtype, row.data(), kCols, decoded.data());
    Scaled32 part;
    for (int64_t i = 0; i < kCols; ++i) {
      if (i % 32 == 0) codec.unpack32(row.data(), i / 32, &part);
      ASSERT_TRUE(codec.group == 16 || part.scale[0] == part.scale[1]) << Name(dtype);
      const float value = decoded[static_cast<size_t>(i)];
      ASSERT_EQ(value, part.scale[i % 32 / 16] * static_cast<float>(part.value[i % 32]))
          << Name(dtype) << " " << i;
    }
    if (!codec.largest_scale || dtype == DType::kNvfp4) continue;
    const int block = Info(dtype).block;
    float farthest = 0;  // how near weights come to what is said to be their reach
    for (int64_t b = 0; b < kCols / block; ++b) {
      const float largest = F16ToFloat(codec.largest_scale(row.data() + b * Info(dtype).block_bytes, 1));
      for (int64_t i = b * block; i < (b + 1) * block; ++i)
        farthest = std::max(farthest, std::fabs(decoded[static_cast<size_t>(i)]) / largest);
    }
    EXPECT_LE(farthest, static_cast<float>(codec.reach)) << Name(dtype);
    EXPECT_GE(farthest, 0.4f * static_cast<float>(codec.reach)) << Name(dtype);
  }
}

TEST(Decode, PlainTypesAtAnyAddress) {
  const auto decode = [](DType dtype, auto value) {
    std::byte bytes[9];
    std::memcpy(bytes + 1, &value, sizeof(value));
    float out = -1;
    DecodeRow(dtype, bytes + 1, 1, &out);
    return out;
  };
  EXPECT_EQ(decode(DType::kF32, 1.5f), 1.5f);
  EXPECT_EQ(decode(DType::kF64, -2.5), -2.5f);
  EXPECT_EQ(decode(DType::kI8, int8_t{-128}), -128.0f);
  EXPECT_EQ(decode(DType::kU8, uint8_t{200}), 200.0f);
  EXPECT_EQ(decode(DType::kI16, int16_t{-300}), -300.0f);
  EXPECT_EQ(decode(DType::kI32, int32_t{1 << 20}), 1048576.0f);
  EXPECT_EQ(decode(DType::kI64, int64_t{-5}), -5.0f);
  EXPECT_EQ(decode(DType::kBool, uint8_t{1}), 1.0f);
  EXPECT_EQ(decode(DType::kF16, uint16_t{0x3c00}), 1.0f);
  EXPECT_EQ(decode(DType::kBf16, uint16_t{0xbf80}), -1.0f);
  EXPECT_EQ(decode(DType::kFp8E4M3, uint8_t{0x38}), 1.0f);
}

// The largest error of a block: half a step (a whole one where the grid ends at the far side of Q4_0 and
// Q5_0), and the rounding of scale and minimum to f16 (2^-11 relative) times how often they are used.
double MaxBlockError(DType dtype, const float* x) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const double largest = std::max(std::fabs(*low), std::fabs(*high));
  const double range = static_cast<double>(*high) - *low;
  constexpr double kHalf = 0x1p-11;
  switch (dtype) {
    case DType::kQ4_0:
      return largest / 8 + largest * kHalf;
    case DType::kQ5_0:
      return largest / 16 + largest * kHalf;
    case DType::kQ8_0:
      return largest / 127 / 2 + largest * kHalf;
    case DType::kQ4_1:
      return range / 15 / 2 + range * kHalf + largest * kHalf;
    case DType::kQ5_1:
      return range / 31 / 2 + range * kHalf + largest * kHalf;
    default:
      return 0;
  }
}

TEST(Encode, SmallBlocksLoseAtMostTheirStep) {
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0}) {
    const auto row = Normal(32 * 99, 0.05f, 3);
    const auto out = RoundTrip(dtype, row);
    for (size_t i = 0; i < row.size(); ++i)
      ASSERT_LE(std::fabs(out[i] - row[i]), MaxBlockError(dtype, row.data() + i / 32 * 32) * 1.0001)
          << Name(dtype) << " element " << i;
  }
}

// The fits are never worse than the plain grid over the group's range, whose largest error is half a step;
// then scale and minimum are rounded to `levels` of the block's largest.
TEST(Encode, KBlocksLoseAtMostTheirStep) {
  struct Case {
    DType dtype;
    int group, steps, scale_levels;
    bool symmetric;
  };
  for (const Case c : {Case{DType::kQ2_K, 16, 3, 15, false}, Case{DType::kQ3_K, 16, 4, 32, true},
                       Case{DType::kQ4_K, 32, 15, 63, false}, Case{DType::kQ5_K, 32, 31, 63, false},
                       Case{DType::kQ6_K, 16, 32, 128, true}}) {
    const auto row = Normal(256 * 33, 0.05f, 4);
    const auto out = RoundTrip(c.dtype, row);
    for (size_t block = 0; block < row.size(); block += 256) {
      double largest = 0;
      for (size_t i = block; i < block + 256; ++i) largest = std::max(largest, std::fabs(double{row[i]}));
      for (size_t g = block; g < block + 256; g += static_cast<size_t>(c.group)) {
        const auto [low, high] = std::minmax_element(row.data() + g, row.data() + g + c.group);
        const double extent = c.symmetric ? std::max(std::fabs(*low), std::fabs(*high))
                                          : std::max(*high, 0.0f) - std::min(*low, 0.0f);
        double squares = 0;
        for (size_t i = g; i < g + static_cast<size_t>(c.group); ++i)
          squares += std::pow(double{out[i]} - row[i], 2);
        const double rounding = largest * 2 / c.scale_levels * (c.symmetric ? 0.5 : 1.5);
        ASSERT_LE(std::sqrt(squares / c.group), extent / c.steps / 2 + rounding)
            << Name(c.dtype) << " at " << g;
      }
    }
  }
}

// More bits, less error; on normal weights each bit halves it. The factors are 2^-bits with room for the
// format.
TEST(Encode, ErrorFallsWithBits) {
  const auto row = Normal(256 * 64, 1.0f, 5);
  const auto rms = [&](DType dtype) {
    const auto out = RoundTrip(dtype, row);
    double squares = 0;
    for (size_t i = 0; i < row.size(); ++i) squares += std::pow(double{out[i]} - row[i], 2);
    return std::sqrt(squares / static_cast<double>(row.size()));
  };
  EXPECT_LT(rms(DType::kQ2_K), 0.40);
  EXPECT_LT(rms(DType::kQ3_K), 0.20);
  EXPECT_LT(rms(DType::kQ4_K), rms(DType::kQ4_0));
  EXPECT_LT(rms(DType::kQ5_K), rms(DType::kQ4_K) * 0.6);
  EXPECT_LT(rms(DType::kQ6_K), rms(DType::kQ5_K) * 0.8);
  EXPECT_LT(rms(DType::kQ8_0), rms(DType::kQ6_K) * 0.5);
}

TEST(Encode, ZerosStayZeroAndOddInputIsSafe) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : BlockTypes()) {
    for (const float x : RoundTrip(dtype, std::vector<float>(512, 0.0f))) ASSERT_EQ(x, 0.0f) << Name(dtype);
    for (const float bad : {kInf, -kInf, kNan, 3e38f, 1e-42f}) {  // defined, whatever comes out
      auto row = Normal(512, 1.0f, 6);
      row[17] = row[300] = bad;
      RoundTrip(dtype, row);
      RoundTrip(dtype, std::vector<float>(512, bad));
    }
  }
}

TEST(Decode, PartOfABlockIsAMistake) {
  std::byte bytes[64] = {};
  float out[64];
  EXPECT_DEATH(DecodeRow(DType::kQ4_0, bytes, 33, out), "cols % ");
}

// A row's own codes give the row again, and others the levels of its groups.
TEST(SetCodes, KeepsScalesAndOffsets) {
  constexpr int64_t kCols = 512;
  const std::vector<float> x = Normal(kCols, 0.02f, 31);
  std::mt19937 random(32);
  for (const DType dtype : BlockTypes()) {
    const BlockGrid grid = GridOf(dtype);
    if (grid.levels == 0) continue;  // not evenly spaced
    std::vector<std::byte> row(*BytesFor(dtype, kCols));
    std::vector<float> own(kCols), low(kCols), high(kCols), other(kCols);
    EncodeRow(dtype, x.data(), kCols, row.data());
    DecodeRow(dtype, row.data(), kCols, own.data());
    const auto decode = [&](const std::vector<uint8_t>& codes, std::vector<float>* out) {
      std::vector<std::byte> bytes = row;
      SetCodes(dtype, codes.data(), kCols, bytes.data());
      DecodeRow(dtype, bytes.data(), kCols, out->data());
      return bytes;
    };
    decode(std::vector<uint8_t>(kCols, 0), &low);
    decode(std::vector<uint8_t>(kCols, static_cast<uint8_t>(grid.levels)), &high);
    std::vector<uint8_t> same(kCols), any(kCols);
    for (size_t i = 0; i < kCols; ++i) {
      const size_t group = i - i % static_cast<size_t>(grid.group);
      EXPECT_EQ(low[i], low[group]) << Name(dtype);
      EXPECT_EQ(high[i], high[group]) << Name(dtype);
      ASSERT_NE(high[i], low[i]) << Name(dtype);
      const float step = (high[i] - low[i]) / static_cast<float>(grid.levels);
      same[i] = static_cast<uint8_t>(std::lround((own[i] - low[i]) / step));
      any[i] = static_cast<uint8_t>(random() % static_cast<uint32_t>(grid.levels + 1));
    }
    EXPECT_EQ(decode(same, &other), row) << Name(dtype);
    decode(any, &other);
    for (size_t i = 0; i < kCols; ++i) {
      const float step = (high[i] - low[i]) / static_cast<float>(grid.levels);
      EXPECT_NEAR(other[i], low[i] + step * static_cast<float>(any[i]), 1e-3f * std::fabs(step))
          << Name(dtype);
    }
  }
}

}  // namespace
}  // namespace celer
