#include "base/safe_math.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(SafeMath, MulStopsAtTheBorder) {
  EXPECT_EQ(CheckedMul(3, -4), -12);
  EXPECT_EQ(CheckedMul(INT64_MAX, 1), INT64_MAX);
  EXPECT_EQ(CheckedMul(INT64_MAX, 0), 0);
  EXPECT_FALSE(CheckedMul(INT64_MAX, 2));
  EXPECT_FALSE(CheckedMul(INT64_MIN, -1));
  EXPECT_FALSE(CheckedMul(int64_t{1} << 32, int64_t{1} << 31));
}

TEST(SafeMath, AddStopsAtTheBorder) {
  EXPECT_EQ(CheckedAdd(2, 3), 5);
  EXPECT_EQ(CheckedAdd(INT64_MAX, -1), INT64_MAX - 1);
  EXPECT_FALSE(CheckedAdd(INT64_MAX, 1));
  EXPECT_FALSE(CheckedAdd(INT64_MIN, -1));
}

TEST(SafeMath, Rounding) {
  EXPECT_EQ(RoundUp(0, 64), 0u);
  EXPECT_EQ(RoundUp(1, 64), 64u);
  EXPECT_EQ(RoundUp(64, 64), 64u);
  EXPECT_EQ(RoundUp(65, 64), 128u);
  EXPECT_EQ(CeilDiv(0, 3), 0);
  EXPECT_EQ(CeilDiv(7, 3), 3);
  EXPECT_EQ(CeilDiv(9, 3), 3);
  EXPECT_EQ(CeilDiv(INT64_MAX, 2), int64_t{1} << 62);
}

}  // namespace
}  // namespace celer
