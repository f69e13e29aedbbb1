#include "formats/weight_format.h"

#include <gtest/gtest.h>

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
    std::vector<std::byte> values(static_cast<size_t>(format.RowBytes(kCols)));
    std::vector<float> scales(static_cast<size_t>(format.ScaleBytes(kCols)) / 4);
    format.Encode(row.data(), kCols, values.data(), scales.data());
    format.Decode(values.data(), scales.data(), kCols, back.data());
    const double step = format.kind == WeightKind::kInt4 ? 2.0 / 15 : 1.0 / 127;
    for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], back[i], 0.52 * step) << format.Name();
  }
}

}  // namespace
}  // namespace celer
