#include "kernels/network/resize/resize.h"

#include <gtest/gtest.h>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

ResizeAxis NearestAxis(int64_t in, int64_t out) {
  ResizeAxis axis;
  for (int64_t i = 0; i < out; ++i) axis.first.push_back(static_cast<int32_t>(i * in / out));
  return axis;
}
ResizeAxis LinearAxis(int64_t in, int64_t out) {
  ResizeAxis axis;
  for (int64_t i = 0; i < out; ++i) {
    const float place = static_cast<float>(i) * static_cast<float>(in - 1) / static_cast<float>(out);
    axis.first.push_back(static_cast<int32_t>(place));
    axis.second.push_back(static_cast<int32_t>(std::min<int64_t>(axis.first.back() + 1, in - 1)));
    axis.weight.push_back(place - static_cast<float>(axis.first.back()));
  }
  return axis;
}

TEST(Resize, EveryElementIsWhereItsPlaceSays) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  const int64_t planes = 5, in_h = 13, in_w = 22;
  const auto in = RandomFloats(planes * in_h * in_w, 1);
  for (const bool linear : {false, true})
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{26, 44}, {7, 11}, {40, 22}, {13, 66}}) {
      const ResizeAxis y = linear ? LinearAxis(in_h, h) : NearestAxis(in_h, h),
                       x = linear ? LinearAxis(in_w, w) : NearestAxis(in_w, w);
      std::vector<float> out(planes * h * w), again(out.size());
      ResizePlanes(in.data(), planes, in_h, in_w, y, x, out.data(), one);
      ResizePlanes(in.data(), planes, in_h, in_w, y, x, again.data(), three);
      EXPECT_EQ(out, again);
      for (int64_t p = 0; p < planes; ++p)
        for (int64_t r = 0; r < h; ++r)
          for (int64_t c = 0; c < w; ++c) {
            const auto row = static_cast<size_t>(r), col = static_cast<size_t>(c);
            const auto at = [&](int32_t i, int32_t j) { return in[(p * in_h + i) * in_w + j]; };
            double expected = at(y.first[row], x.first[col]);
            if (linear) {
              const double d = y.weight[row], e = x.weight[col];
              expected =
                  (1 - d) * ((1 - e) * expected + e * at(y.first[row], x.second[col])) +
                  d * ((1 - e) * at(y.second[row], x.first[col]) + e * at(y.second[row], x.second[col]));
            }
            ASSERT_NEAR(out[(p * h + r) * w + c], expected, linear ? 1e-6 : 0)
                << linear << " " << h << "x" << w;
          }
    }
}

}  // namespace
}  // namespace celer
