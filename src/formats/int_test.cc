// celer's own int8 and int4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "formats/int4.h"
#include "formats/int8.h"

namespace celer {
namespace {

std::vector<float> Normal(size_t n, float sigma, float mean, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, sigma);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

TEST(Int8, LayoutChecksTheGroup) {
  EXPECT_FALSE(Int8Layout::Make(4, 96, 64));
  EXPECT_FALSE(Int8Layout::Make(4, 0));
  EXPECT_FALSE(Int8Layout::Make(4, 96, -32));
  const auto channel = Int8Layout::Make(4, 97);
  ASSERT_TRUE(channel);
  EXPECT_EQ(channel->groups_per_row(), 1);
  EXPECT_EQ(channel->total_bytes(), 4 * 97 + 4 * 4);
}

TEST(Int8, LosesAtMostHalfAStep) {
  for (const auto& [cols, group] :
       {std::pair<int, int>{97, 0}, {96, 32}, {4096, 0}, {4096, 128}, {1, 0}, {35, 7}}) {
    const auto layout = Int8Layout::Make(1, cols, group).value();
    const auto row = Normal(static_cast<size_t>(cols), 0.03f, 0, 1);
    std::vector<int8_t> values(row.size());
    std::vector<float> scales(layout.groups_per_row()), out(row.size());
    EncodeInt8Row(layout, row.data(), values.data(), scales.data());
    DecodeInt8Row(layout, values.data(), scales.data(), out.data());
    for (size_t i = 0; i < row.size(); ++i) {
      const float scale = scales[i / static_cast<size_t>(layout.group)];
      ASSERT_LE(std::fabs(out[i] - row[i]), scale * 0.5f * 1.0001f) << cols << "/" << group << " at " << i;
    }
  }
}

TEST(Int8, ExtremesAreExactAndZerosStay) {
  const auto layout = Int8Layout::Make(1, 4).value();
  int8_t values[4];
  float scale = 0, out[4];
  const float row[] = {-254, 254, 2, 0};
  EncodeInt8Row(layout, row, values, &scale);
  EXPECT_EQ(values[0], -127);
  EXPECT_EQ(values[1], 127);
  EXPECT_EQ(values[2], 1);
  DecodeInt8Row(layout, values, &scale, out);
  EXPECT_TRUE(std::equal(row, row + 4, out));
  const float zeros[] = {0, 0, 0, 0};
  EncodeInt8Row(layout, zeros, values, &scale);
  DecodeInt8Row(layout, values, &scale, out);
  EXPECT_TRUE(std::equal(zeros, zeros + 4, out));
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), 1, 1e-44f, -1};
  EncodeInt8Row(layout, bad, values, &scale);  // defined, whatever comes out
}

TEST(Int4, LayoutChecksTheGroup) {
  EXPECT_FALSE(Int4Layout::Make(4, 96, 64));
  EXPECT_FALSE(Int4Layout::Make(4, 96, 48));
  EXPECT_FALSE(Int4Layout::Make(4, 0, 32));
  const auto layout = Int4Layout::Make(3, 96, 32);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->total_bytes(), 3 * 48 + 3 * 3 * 4);
}

TEST(Int4, LosesAtMostItsStep) {
  for (const int group : {32, 64, 128}) {
    for (const float mean : {0.0f, 0.2f, -1.0f}) {  // also groups that do not contain zero
      const auto layout = Int4Layout::Make(1, 128 * 9, group).value();
      const auto row = Normal(static_cast<size_t>(layout.cols), 0.05f, mean, 2);
      std::vector<uint8_t> values(layout.row_bytes());
      std::vector<Int4Group> params(layout.groups_per_row());
      std::vector<float> out(row.size());
      EncodeInt4Row(layout, row.data(), values.data(), params.data());
      DecodeInt4Row(layout, values.data(), params.data(), out.data());
      for (int64_t g = 0; g < layout.groups_per_row(); ++g) {
        const float* x = row.data() + g * group;
        const auto [low, high] = std::minmax_element(x, x + group);
        double squares = 0;
        for (int i = 0; i < group; ++i) squares += std::pow(double{out[g * group + i]} - x[i], 2);
        const float scale = F16ToFloat(params[g].scale);
        ASSERT_EQ(scale, Bf16ToFloat(FloatToBf16(scale)));
        // Never worse than the plain grid: half a step, the f16 rounding of the minimum, and the bf16
        // rounding of the scale, 7.5 times on either side of the middle.
        const double range = static_cast<double>(*high) - *low;
        const double worst = range / 15 / 2 + 0x1p-11 * std::fabs(*low) + 0x1p-9 * range / 2;
        ASSERT_LE(std::sqrt(squares / group), worst) << group << " " << mean << " group " << g;
        // A uniform grid's expected miss is step / sqrt(12); shrinking it may only help.
        ASSERT_LE(std::sqrt(squares / group),
                  range / 15 / std::sqrt(12.0) * 1.25 + 0x1p-11 * std::fabs(*low));
      }
    }
  }
}

TEST(Int4, NibbleOrderIsDocumentedOrder) {
  const auto layout = Int4Layout::Make(1, 32, 32).value();
  float row[32], out[32];
  for (int i = 0; i < 32; ++i) row[i] = static_cast<float>(i % 16);
  uint8_t values[16];
  Int4Group params;
  EncodeInt4Row(layout, row, values, &params);
  EXPECT_EQ(F16ToFloat(params.scale), 1.0f);
  EXPECT_EQ(F16ToFloat(params.min), 0.0f);
  EXPECT_EQ(values[0], 0x10);
  EXPECT_EQ(values[7], 0xfe);
  DecodeInt4Row(layout, values, &params, out);
  EXPECT_TRUE(std::equal(row, row + 32, out));
}

TEST(Int4, ConstantsAndOddInput) {
  const auto layout = Int4Layout::Make(1, 32, 32).value();
  uint8_t values[16];
  Int4Group params;
  float row[32], out[32];
  for (const float constant : {0.0f, 0.75f, -2.0f}) {
    std::fill(row, row + 32, constant);
    EncodeInt4Row(layout, row, values, &params);
    DecodeInt4Row(layout, values, &params, out);
    EXPECT_TRUE(std::equal(row, row + 32, out)) << constant;
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
    row[3] = bad;
    row[9] = -bad;
    EncodeInt4Row(layout, row, values, &params);  // defined, whatever comes out
  }
}

}  // namespace
}  // namespace celer
