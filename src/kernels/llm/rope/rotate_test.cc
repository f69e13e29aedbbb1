#include "kernels/llm/rope/rotate.h"

#include <gtest/gtest.h>

#include "kernels/shared/test_util.h"

namespace celer {
namespace {

TEST(Rotate, MatchesDouble) {
  for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved})
    for (const auto& [head_dim, rope_dim] :
         {std::pair<int64_t, int64_t>{2, 2}, {8, 8}, {20, 10}, {64, 64}, {80, 32}, {13, 6}, {128, 52}}) {
      const int64_t heads = 3, half = rope_dim / 2;
      const auto x = testing::RandomFloats(heads * head_dim, 1);
      const auto cos = testing::RandomFloats(half, 2), sin = testing::RandomFloats(half, 3);
      std::vector<double> expected(x.begin(), x.end());
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const int64_t a = h * head_dim + (layout == RopeLayout::kHalf ? i : 2 * i);
          const int64_t b = h * head_dim + (layout == RopeLayout::kHalf ? i + half : 2 * i + 1);
          const double c = cos[i], s = sin[i];
          const double u = x[a], v = x[b];
          expected[a] = u * c - v * s;
          expected[b] = v * c + u * s;
        }
      for (const auto& variant : RotateHeadsVariants()) {
        if (!variant.RunsHere()) continue;
        std::vector<float> out = x;
        variant.run(out.data(), heads, head_dim, cos.data(), sin.data(), rope_dim, layout);
        EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = 2e-7}))
            << variant.name << ", head_dim " << head_dim;
      }
    }
}

}  // namespace
}  // namespace celer
