#include "models/cpu/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace celer {
namespace {

using Scaling = RopeConfig::Scaling;

RopeConfig RopeOf(Scaling scaling, int64_t dim, double factor, double original) {
  RopeConfig rope;
  rope.dim = dim;
  rope.scaling = scaling;
  rope.factor = factor;
  rope.original_positions = original;
  return rope;
}

// Numbers that transformers' functions of the same name give.
void ExpectFrequencies(std::span<const float> got, std::initializer_list<double> expected) {
  ASSERT_EQ(got.size(), expected.size());
  size_t i = 0;
  for (const double value : expected) {
    EXPECT_NEAR(got[i], value, 2e-6 * value) << i;
    ++i;
  }
}

TEST(Rope, YarnRampWithAndWithoutWholeDimensions) {
  RopeConfig yarn = RopeOf(Scaling::kYarn, 12, 4, 512);
  ExpectFrequencies(RopeTable(yarn).frequencies(),
                    {1.0, 0.1615826, 0.02320794, 0.0025, 0.0005386086, 0.0001160397});
  yarn.truncate = false;
  ExpectFrequencies(RopeTable(yarn).frequencies(),
                    {1.0, 0.1874536, 0.02496664, 0.0025, 0.0005386086, 0.0001160397});
  yarn.truncate = true;
  yarn.beta_fast = 8;
  yarn.beta_slow = 2;
  ExpectFrequencies(RopeTable(yarn).frequencies(),
                    {1.0, 0.2154434, 0.02900993, 0.0025, 0.0005386086, 0.0001160397});
}

TEST(Rope, DynamicGrowsWithTheSequence) {
  const RopeTable table(RopeOf(Scaling::kDynamic, 8, 2, 64));
  ExpectFrequencies(table.frequencies(), {1.0, 0.1, 0.01, 0.001});
  const int32_t positions[] = {1, 1, 1}, lengths[] = {64, 100, 20};
  std::vector<float> cos(12), sin(12);
  table.Fill(positions, lengths, cos.data(), sin.data());
  EXPECT_NEAR(sin[1], std::sin(0.1), 1e-7);
  EXPECT_NEAR(sin[4 + 1], std::sin(0.07778222), 1e-7);
  EXPECT_NEAR(sin[4 + 3], std::sin(0.0004705882), 1e-9);
  EXPECT_NEAR(sin[8 + 1], std::sin(0.1), 1e-7);
}

TEST(Rope, LongRopeTakesTheLongFactorsBeyondTheOriginalPositions) {
  RopeConfig rope = RopeOf(Scaling::kLongRope, 8, 4, 16);
  rope.short_factors = {1, 1.5f, 2, 2.5f};
  rope.long_factors = {1, 2, 4, 8};
  rope.attention_factor = 1.224745;
  const RopeTable table(rope);
  ExpectFrequencies(table.frequencies(), {1.0, 0.06666667, 0.005, 0.0004});
  const int32_t positions[] = {1, 1}, lengths[] = {16, 17};
  std::vector<float> cos(8), sin(8);
  table.Fill(positions, lengths, cos.data(), sin.data());
  EXPECT_NEAR(sin[1], 1.224745 * std::sin(0.06666667), 1e-6);
  EXPECT_NEAR(sin[4 + 1], 1.224745 * std::sin(0.05), 1e-6);
  EXPECT_NEAR(cos[4 + 3], 1.224745 * std::cos(0.000125), 1e-6);
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  RopeConfig rope = RopeOf(Scaling::kLlama3, 8, 8, 32);
  ExpectFrequencies(RopeTable(rope).frequencies(), {1.0, 0.0125, 0.00125, 0.000125});
}

}  // namespace
}  // namespace celer
