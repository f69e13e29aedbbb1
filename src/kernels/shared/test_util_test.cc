#include "kernels/shared/test_util.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

namespace celer {
namespace {

using testing::AllFinite;
using testing::AllNear;
using ::testing::HasSubstr;
using testing::RelativeError;
using testing::WorstRelative;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(AllNear, SaysWhichAndHowFar) {
  const std::vector<float> expected = {1, 2, 3, 4};
  EXPECT_TRUE(AllNear(std::vector<float>{1, 2, 3, 4}, expected, {}));
  EXPECT_TRUE(AllNear(std::vector<float>{1, 2, 3, 4.25f}, expected, {.absolute = 0.25}));
  EXPECT_TRUE(AllNear(std::vector<float>{1, 2, 3, 4.25f}, expected, {.relative = 0.0625}));
  const auto off = AllNear(std::vector<float>{1, 2.5f, 3, 5}, expected, {.absolute = 0.25});
  EXPECT_FALSE(off);
  EXPECT_THAT(off.message(), HasSubstr("2 of 4 values"));
  EXPECT_THAT(off.message(), HasSubstr("the first at 1: got 2.5, expected 2, off by 0.5, allowed 0.25"));
  EXPECT_THAT(off.message(), HasSubstr("the worst at 3: got 5, expected 4"));
  EXPECT_FALSE(AllNear(std::vector<float>{1, 2}, expected, {.absolute = 100}));
  EXPECT_TRUE(AllNear(std::vector<float>{1, 2, 3, 9}, std::vector<double>{1, 2, 3, 4},
                      [](size_t i) { return i == 3 ? 5.0 : 0.0; }));
}

TEST(AllNear, WhatIsNotFinitePassesOnlyIfExpected) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    EXPECT_FALSE(AllNear(std::vector{1.0f, bad}, std::vector{1.0f, 2.0f}, {.absolute = 1e30}));
    EXPECT_FALSE(AllNear(std::vector{1.0f, 2.0f}, std::vector{1.0f, bad}, {.absolute = 1e30, .relative = 1}));
    EXPECT_FALSE(AllNear(std::vector{bad}, std::vector{1.0f}, [](size_t) { return double{kInfinity}; }));
    EXPECT_FALSE(AllNear(std::vector{0.5f}, std::vector{1.0f}, [](size_t) { return double{kNan}; }));
    EXPECT_TRUE(AllNear(std::vector{bad}, std::vector{bad}, {}));
    EXPECT_FALSE(AllFinite(std::vector{1.0f, bad}));
  }
  EXPECT_FALSE(AllNear(std::vector{kInfinity}, std::vector{-kInfinity}, {.absolute = 1e30}));
  EXPECT_TRUE(AllFinite(std::vector{1.0f, -1e38f}));
}

TEST(RelativeErrors, AreInfiniteForWhatIsNotFinite) {
  const std::vector<float> expected = {3, 4};
  EXPECT_DOUBLE_EQ(WorstRelative(std::vector<float>{3, 5}, expected), 0.25);
  EXPECT_DOUBLE_EQ(RelativeError(std::vector<float>{3, 5}, expected), 0.2);
  EXPECT_EQ(WorstRelative(expected, expected), 0);
  for (const float bad : {kNan, kInfinity}) {
    EXPECT_EQ(WorstRelative(std::vector{3.0f, bad}, expected), kInfinity);
    EXPECT_EQ(RelativeError(std::vector{3.0f, bad}, expected), kInfinity);
    EXPECT_EQ(WorstRelative(std::vector{3.0f, bad}, std::vector{3.0f, bad}), kInfinity);
  }
  EXPECT_EQ(WorstRelative(std::vector<float>{}, std::vector<float>{}), kInfinity) << "nothing was compared";
  EXPECT_EQ(RelativeError(std::vector<float>{1}, expected), kInfinity);
  EXPECT_EQ(RelativeError(std::vector<float>{1}, std::vector<float>{0}), kInfinity);
}

}  // namespace
}  // namespace celer
