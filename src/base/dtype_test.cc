#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace celer {
namespace {

TEST(DType, NamesParseBackInAnyCase) {
  for (const DTypeInfo& info : DTypes()) {
    const DType dtype = info.dtype;
    std::string upper(info.name);
    EXPECT_EQ(ParseDType(upper), dtype);
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    EXPECT_EQ(ParseDType(upper), dtype) << upper;
  }
  for (const char* const bad : {"", "f", "f3", "f320", "float", "q4_k_m", " f32"})
    EXPECT_FALSE(ParseDType(bad)) << bad;
}

TEST(DType, SizesFollowTheFormats) {
  EXPECT_EQ(Info(DType::kF32).block_bytes, 4);
  EXPECT_EQ(Info(DType::kBf16).block_bytes, 2);
  EXPECT_EQ(Info(DType::kFp8E4M3).block_bytes, 1);
  EXPECT_EQ(Info(DType::kF64).block_bytes, 8);
  // Written out from the layouts: scales and quants of one block.
  EXPECT_EQ(Info(DType::kQ4_0).block_bytes, 2 + 16);
  EXPECT_EQ(Info(DType::kQ4_1).block_bytes, 2 + 2 + 16);
  EXPECT_EQ(Info(DType::kQ5_0).block_bytes, 2 + 4 + 16);
  EXPECT_EQ(Info(DType::kQ5_1).block_bytes, 2 + 2 + 4 + 16);
  EXPECT_EQ(Info(DType::kQ8_0).block_bytes, 2 + 32);
  EXPECT_EQ(Info(DType::kQ2_K).block_bytes, 16 + 64 + 2 + 2);
  EXPECT_EQ(Info(DType::kQ3_K).block_bytes, 32 + 64 + 12 + 2);
  EXPECT_EQ(Info(DType::kQ4_K).block_bytes, 2 + 2 + 12 + 128);
  EXPECT_EQ(Info(DType::kQ5_K).block_bytes, 2 + 2 + 12 + 32 + 128);
  EXPECT_EQ(Info(DType::kQ6_K).block_bytes, 128 + 64 + 16 + 2);
  EXPECT_DOUBLE_EQ(BitsPerElement(DType::kQ4_0), 4.5);
  EXPECT_DOUBLE_EQ(BitsPerElement(DType::kF16), 16.0);
  EXPECT_TRUE(IsBlockQuantized(DType::kQ8_0));
  EXPECT_FALSE(IsBlockQuantized(DType::kFp8E4M3));
}

TEST(DType, BytesForRejectsWhatDoesNotFit) {
  EXPECT_EQ(BytesFor(DType::kF32, 0), 0);
  EXPECT_EQ(BytesFor(DType::kF32, 3), 12);
  EXPECT_EQ(BytesFor(DType::kQ4_0, 64), 36);
  EXPECT_FALSE(BytesFor(DType::kQ4_0, 33));
  EXPECT_FALSE(BytesFor(DType::kQ4_K, 128));
  EXPECT_FALSE(BytesFor(DType::kF32, -1));
  EXPECT_FALSE(BytesFor(DType::kF32, INT64_MAX));
  EXPECT_FALSE(BytesFor(DType::kQ8_0, INT64_MAX - 31));  // whole blocks, more than 63 bits of bytes
  EXPECT_EQ(BytesFor(DType::kU8, INT64_MAX), INT64_MAX);
}

TEST(DTypeDeathTest, UnknownValueIsCaught) {
  EXPECT_DEATH((void)Info(static_cast<DType>(200)), "200 vs [0-9]+");
}

}  // namespace
}  // namespace celer
