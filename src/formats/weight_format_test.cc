#include "formats/weight_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace celer {
namespace {

TEST(WeightFormat, NamesAndSizes) {
  const auto q4 = WeightFormatSpec::Stored(DType::kQ4_1);
  EXPECT_EQ(q4.Name(), "q4_1");
  EXPECT_EQ(q4.RowBytes(64), 40);
  EXPECT_EQ(q4.ScaleBytes(64), 0);
  EXPECT_EQ(q4.ColumnStep(), 32);
  EXPECT_FALSE(q4.Fits(48));
  const WeightFormatSpec int8{.kind = WeightKind::kInt8}, int4{.kind = WeightKind::kInt4, .group = 64};
  EXPECT_EQ(int8.Name(), "int8");
  EXPECT_EQ(int8.RowBytes(50), 50);
  EXPECT_EQ(int8.ScaleBytes(50), 4);
  EXPECT_EQ(int8.ColumnStep(), 1);
  EXPECT_EQ(int4.Name(), "int4-g64");
  EXPECT_EQ(int4.RowBytes(128), 64);
  EXPECT_EQ(int4.ScaleBytes(128), 8);
  EXPECT_FALSE(int4.Fits(96));
  EXPECT_NE(int8, (WeightFormatSpec{.kind = WeightKind::kInt8, .group = 32}));
  const WeightFormatSpec fp8{.kind = WeightKind::kFp8, .group = 128};
  EXPECT_EQ(fp8.Name(), "fp8-g128");
  EXPECT_EQ(fp8.RowBytes(256), 256);
  EXPECT_EQ(fp8.ScaleBytes(256), 8);
  EXPECT_FALSE(fp8.Fits(192));
  EXPECT_NE(fp8, (WeightFormatSpec{.kind = WeightKind::kInt8, .group = 128}));
  // The group of a stored type and the type of one of celer's own mean nothing.
  EXPECT_EQ(q4, (WeightFormatSpec{.dtype = DType::kQ4_1, .group = 32}));
  EXPECT_EQ(int8, (WeightFormatSpec{.kind = WeightKind::kInt8, .dtype = DType::kBf16}));
}

TEST(WeightFormat, RowsComeBackAsFarAsTheBitsGo) {
  constexpr int64_t kCols = 256;
  std::vector<float> row(kCols), back(kCols);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::sin(static_cast<float>(i));
  std::vector<WeightFormatSpec> all;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0})
    all.push_back(WeightFormatSpec::Stored(dtype));
  for (const WeightKindInfo& info : WeightKinds())
    for (const int64_t group : info.groups) all.push_back({.kind = info.kind, .group = group});
  for (const WeightFormatSpec& format : all) {
    std::vector<std::byte> values(format.RowBytes(kCols));
    std::vector<float> scales(static_cast<size_t>(format.ScaleBytes(kCols)) / 4);
    format.Encode(row.data(), kCols, values.data(), scales.data());
    format.Decode(values.data(), scales.data(), kCols, back.data());
    const double step = format.kind == WeightKind::kInt4  ? 2.0 / 15
                        : format.kind == WeightKind::kFp8 ? 32.0 / 448
                                                          : 1.0 / 127;
    for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], back[i], 0.52 * step) << format.Name();
  }
}

TEST(WeightFormat, Fp8RoundsToTheNearestCodeUnderTheLargest) {
  const WeightFormatSpec format{.kind = WeightKind::kFp8, .group = 32};
  std::vector<float> row(64), back(64), scales(2);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::ldexp(1.0f, -static_cast<int>(i % 32));
  row[32] = 0x1p-140f;  // a scale whose inverse is no number
  for (size_t i = 33; i < 64; ++i) row[i] = 0;
  std::vector<std::byte> values(64);
  format.Encode(row.data(), 64, values.data(), scales.data());
  format.Decode(values.data(), scales.data(), 64, back.data());
  EXPECT_EQ(scales[0], 1.0f / 448);
  EXPECT_EQ(values[0], std::byte{0x7e});
  for (size_t i = 0; i < 32; ++i)  // three bits behind the first one, steps of 2^-9 at least
    EXPECT_NEAR(back[i], row[i], std::max(row[i] / 16, 0x1p-10f / 448) * 1.0001f) << i;
  for (size_t i = 32; i < 64; ++i) EXPECT_EQ(back[i], 0) << i;
}

}  // namespace
}  // namespace celer
