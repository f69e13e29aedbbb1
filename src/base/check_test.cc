#include "base/check.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Check, TrueIsSilentAndEvaluatedOnce) {
  int calls = 0;
  const auto next = [&] { return ++calls; };
  CELER_CHECK(next() == 1);
  CELER_CHECK_EQ(next(), 2);
  CELER_CHECK_LT(next(), 4);
  CELER_CHECK_NE(1, 2);
  CELER_CHECK_LE(2, 2);
  CELER_CHECK_GT(3, 2);
  CELER_CHECK_GE(2, 2);
  EXPECT_EQ(calls, 3);
}

TEST(Check, IsOneStatement) {
  if (false)
    CELER_CHECK(false);
  else
    SUCCEED();
}

TEST(CheckDeathTest, PrintsPlaceExpressionAndBothValues) {
  const int rows = 3;
  EXPECT_DEATH(CELER_CHECK_EQ(rows, 4), "check_test.cc:[0-9]+: check failed: rows == 4 \\(3 vs 4\\)");
  EXPECT_DEATH(CELER_CHECK_GT(rows, 3), "rows > 3 \\(3 vs 3\\)");
  EXPECT_DEATH(CELER_CHECK(rows == 2), "check failed: rows == 2");
}

}  // namespace
}  // namespace celer
