#include "base/shape.h"

#include <gtest/gtest.h>

#include <vector>

namespace celer {
namespace {

TEST(Shape, KnowsItsDimensions) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[2], 5);
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.ToString(), "[2, 3, 5]");
}

TEST(Shape, AScalarHasOneElement) {
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().ToString(), "[]");
}

TEST(Shape, ZeroIsAllowed) {
  EXPECT_EQ((Shape{0, 7}).elements(), 0);
}

TEST(Shape, OverflowIsNoNumber) {
  EXPECT_FALSE((Shape{INT64_MAX, 2}).elements());
  EXPECT_EQ((Shape{INT64_MAX, 1}).elements(), INT64_MAX);
  EXPECT_FALSE((Shape{1ll << 32, 1ll << 31}).elements());
}

TEST(Shape, EqualityNeedsTheSameRank) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2}) == (Shape{3}));
  EXPECT_FALSE((Shape{0}) == Shape());
}

TEST(ShapeDeathTest, BadDimensionsAreCaught) {
  const std::vector<int64_t> nine(9, 1);
  EXPECT_DEATH(Shape{std::span<const int64_t>(nine)}, "9 vs 8");
  EXPECT_DEATH((Shape{3, -1}), "-1 vs 0");
}

}  // namespace
}  // namespace celer
