#include "kernels/llm/matmul/cpu/outliers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "device/variant.h"
#include "formats/decode.h"
#include "formats/test_rows.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

TEST(Outliers, LargeValuesAreTakenOutAndTheRestStays) {
  for (const int64_t cols : {32, 96, 576, 4096}) {
    std::vector<float> x = RandomFloats(cols, 1), rest(x.size());
    x[5] = 200;
    x[cols - 1] = -90;
    TokenOutliers out;
    SplitOutliers(x.data(), cols, rest.data(), &out);
    ASSERT_GE(out.count, 2) << cols;
    EXPECT_EQ(out.col[0], 5);
    EXPECT_EQ(out.value[0], 200);
    EXPECT_EQ(out.col[1], cols - 1);
    EXPECT_EQ(out.value[1], -90);
    for (int i = 0; i < out.count; ++i) {
      EXPECT_EQ(rest[out.col[i]], 0);
      rest[out.col[i]] = out.value[i];
    }
    EXPECT_EQ(rest, x) << cols;
  }
}

TEST(Outliers, ARowWithoutAnyKeepsAllValues) {
  std::vector<float> x(4096), rest(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  TokenOutliers out;
  SplitOutliers(x.data(), 4096, rest.data(), &out);
  EXPECT_EQ(out.count, 0);
  EXPECT_EQ(rest, x);
  std::fill(x.begin(), x.end(), 0.0f);
  SplitOutliers(x.data(), 4096, rest.data(), &out);
  EXPECT_EQ(out.count, 0);
}

TEST(Outliers, WhatIsNoNumberIsNotLost) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = RandomFloats(64, 2), rest(x.size());
    x[40] = bad;
    TokenOutliers out;
    SplitOutliers(x.data(), 64, rest.data(), &out);
    bool found = !std::isfinite(rest[40]);
    for (int i = 0; i < out.count; ++i) found |= out.col[i] == 40 && !std::isfinite(out.value[i]);
    EXPECT_TRUE(found) << bad;
  }
}

struct Layout {
  PackGeometry geometry;
  const ColumnKernels* kernels;  // nullptr: only the plain way is tried
  bool runs;
};
std::vector<Layout> Layouts() {
  const PackGeometry step8 = {.rows = 8, .step = 8, .bf16_step = 1, .halves = Halves::kExcess, .gap = 128};
  const PackGeometry step4 = {.rows = 8, .step = 4, .bf16_step = 1, .halves = Halves::kMixed, .min_step = 4};
  const PackGeometry rows16 = {.rows = 16, .step = 4, .bf16_step = 1};
#if defined(__aarch64__)
  return {{step8, &arm::kColumnsStep8, true}, {step4, &arm::kColumnsStep4, true}, {rows16, nullptr, true}};
#elif defined(__x86_64__)
  return {{step8, nullptr, true}, {step4, nullptr, true}, {rows16, &x86::kColumnsAvx2, RunsHere(Isa::kAvx2)}};
#else
  return {{step8, nullptr, true}, {step4, nullptr, true}, {rows16, nullptr, true}};
#endif
}

// Every column of every integer format in every layout, against the rows as stored.
TEST(Outliers, ColumnsOfPackedWeights) {
  constexpr int64_t kRows = 21, kCols = 512;
  for (const DType dtype : AllBlockTypes()) {
    const int64_t row_bytes = *BytesFor(dtype, kCols);
    std::vector<std::byte> data(kRows * row_bytes);
    std::vector<float> decoded(kRows * kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      std::ranges::copy(RandomWeightRow(dtype, kCols, static_cast<uint32_t>(r)), data.data() + r * row_bytes);
      DecodeRow(dtype, data.data() + r * row_bytes, kCols, decoded.data() + r * kCols);
    }
    const WeightView w{
        .dtype = dtype, .rows = kRows, .cols = kCols, .data = data.data(), .row_bytes = row_bytes};
    for (const Layout& layout : Layouts()) {
      if (!layout.runs) continue;
      const PackGeometry& g = layout.geometry;
      const PackedShape shape = PackedShapeOf(w, g);
      if (shape.format == PackedFormat::kNone) {  // read as stored
        EXPECT_EQ(FindCodec(dtype)->group, 16) << Name(dtype);
        continue;
      }
      std::vector<std::byte> packed(shape.bytes());
      PackGroups(w, g, shape, 0, shape.groups, packed.data());
      for (int64_t col = 0; col < kCols; ++col) {
        const PackedColumn column = FindColumn(shape, g, col);
        for (int64_t group = 0; group < shape.groups; ++group) {
          const auto* const at = reinterpret_cast<const uint8_t*>(packed.data()) + group * shape.group_bytes;
          float plain[16], fast[16];
          ReadColumnPlain(column, g, at, plain);
          if (layout.kernels) layout.kernels->read(&column, 1, at, shape.group_bytes, 1, fast);
          for (int64_t r = 0; r < std::min<int64_t>(g.rows, kRows - group * g.rows); ++r) {
            const float expected = decoded[(group * g.rows + r) * kCols + col];
            // The product with a sub-block's scale and the minimum round once each.
            const float bound = 1e-6f * (std::abs(expected) + 1);
            ASSERT_NEAR(plain[r], expected, bound) << Name(dtype) << " column " << col << " row " << r;
            if (layout.kernels) {
              ASSERT_NEAR(fast[r], expected, bound) << Name(dtype) << " column " << col;
            }
          }
        }
      }
    }
  }
}

// Several columns of several groups, and several tokens with none to four of them, against one product after
// the other.
TEST(Outliers, ColumnsMeetTheirTokens) {
  constexpr int64_t kRows = 37, kCols = 96, kTokens = 11, kStride = 71;
  constexpr int kCount = 5;
  const int64_t cols[kCount] = {90, 3, 31, 32, 64};
  const auto stored = RandomFloats(kRows * kCols, 5), before = RandomFloats(kTokens * kStride, 6),
             factors = RandomFloats(kTokens * kOutliers, 7);
  for (const DType dtype : {DType::kQ8_0, DType::kQ5_1, DType::kQ4_0, DType::kQ4_1}) {
    const int64_t row_bytes = *BytesFor(dtype, kCols);
    std::vector<std::byte> data(kRows * row_bytes);
    for (int64_t r = 0; r < kRows; ++r)
      EncodeRow(dtype, stored.data() + r * kCols, kCols, data.data() + r * row_bytes);
    const WeightView w{
        .dtype = dtype, .rows = kRows, .cols = kCols, .data = data.data(), .row_bytes = row_bytes};
    for (const Layout& layout : Layouts()) {
      if (!layout.runs || !layout.kernels) continue;
      const PackGeometry& g = layout.geometry;
      const PackedShape shape = PackedShapeOf(w, g);
      std::vector<std::byte> packed(shape.bytes());
      PackGroups(w, g, shape, 0, shape.groups, packed.data());
      const auto* const group = reinterpret_cast<const uint8_t*>(packed.data());
      std::vector<PackedColumn> columns;
      for (const int64_t col : cols) columns.push_back(FindColumn(shape, g, col));
      const auto groups = static_cast<int>(shape.groups);
      std::vector<float> values(groups * kCount * g.rows);
      layout.kernels->read(columns.data(), kCount, group, shape.group_bytes, groups, values.data());
      std::vector<float> sums = before, expected = before;
      std::vector<TokenOutliers> outliers(kTokens);
      std::vector<uint16_t> slots(kTokens * kOutliers);
      for (int64_t t = 0; t < kTokens; ++t) {
        outliers[t].count = static_cast<int32_t>(t % (kOutliers + 1));
        for (int i = 0; i < kOutliers; ++i) {
          outliers[t].value[i] = factors[t * kOutliers + i];
          slots[t * kOutliers + i] = static_cast<uint16_t>((3 * t + 2 * i) % kCount);
        }
      }
      for (int n = 0; n < groups; ++n) {
        layout.kernels->add_read(values.data() + n * kCount * g.rows, slots.data(), outliers.data(), kTokens,
                                 sums.data() + n * g.rows, kStride);
        for (int64_t t = 0; t < kTokens; ++t) {
          const TokenOutliers& own = outliers[t];
          for (int i = 0; i < own.count; ++i)
            layout.kernels->add(&columns[slots[t * kOutliers + i]], &own.value[i], 1,
                                group + n * shape.group_bytes, shape.group_bytes, 1,
                                expected.data() + t * kStride + n * g.rows);
        }
      }
      EXPECT_EQ(sums, expected) << Name(dtype) << " " << g.rows << " rows by " << g.step;
    }
  }
}

}  // namespace
}  // namespace celer
