#include "kernels/shared/simd.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(Simd, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (float x = -87.29f; x < 88.72f; x += 0.00137f) {
    const double expected = std::exp(double{x});
    const auto rounded = static_cast<float>(expected);
    const double ulp = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
    worst = std::max(worst, testing::Off(Exp1(x), expected) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(Exp1(0.0f), 1.0f);
  EXPECT_EQ(Exp1(-0.0f), 1.0f);
}

TEST(Simd, ExpAtTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp1(-kInf), 0.0f);
  EXPECT_EQ(Exp1(-1e30f), 0.0f);
  EXPECT_EQ(Exp1(-104.0f), 0.0f);
  EXPECT_GE(Exp1(-87.3f), std::numeric_limits<float>::min());
  EXPECT_LT(Exp1(88.7228f), kInf);
  EXPECT_EQ(Exp1(88.8f), kInf);
  EXPECT_EQ(Exp1(kInf), kInf);
  EXPECT_TRUE(std::isnan(Exp1(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(Exp1(std::bit_cast<float>(0xffffffffu))));
}

TEST(Simd, EveryLaneIsTheSameFunction) {
  float in[Simd::kLanes], out[Simd::kLanes];
  for (int i = 0; i < Simd::kLanes; ++i) in[i] = -3.7f * static_cast<float>(i);
  Simd::Store(out, Exp(Simd::Load(in)));
  for (int i = 0; i < Simd::kLanes; ++i) EXPECT_EQ(out[i], Exp1(in[i])) << i;
  Simd::F two[2] = {Simd::Load(in), Simd::Sub(Simd::Load(in), Simd::Set(77.0f))};
  ExpNonPositive(two);
  for (int v = 0; v < 2; ++v) {
    Simd::Store(out, two[v]);
    for (int i = 0; i < Simd::kLanes; ++i)
      EXPECT_EQ(out[i], Exp1(in[i] - 77.0f * static_cast<float>(v))) << i;
  }
}

TEST(Simd, PartsOfAVector) {
  const float in[] = {1, 2, 3};
  float out[] = {9, 9, 9};
  StoreSome(out, LoadSome(in, 2), 2);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 2);
  EXPECT_EQ(out[2], 9);
  EXPECT_EQ(Simd::Sum(LoadSome(in, 3)), 6);
  EXPECT_EQ(Simd::MaxOf(LoadSome(in, 3)), 3);
}

}  // namespace
}  // namespace celer
