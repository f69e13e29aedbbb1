#include "kernels/network/pool/pool.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/aligned_vector.h"
#include "kernels/network/conv/padded_layout.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Case {
  int64_t h, w, kernel_h, kernel_w, stride, dilation, pad, out_h, out_w;
};
// The last ones round their outputs up: windows reach beyond the padding.
constexpr Case kCases[] = {{13, 17, 3, 3, 2, 1, 1, 7, 9},  {20, 20, 5, 5, 1, 1, 2, 20, 20},
                           {8, 9, 2, 2, 2, 1, 0, 4, 4},    {7, 7, 7, 7, 1, 1, 0, 1, 1},
                           {11, 40, 3, 2, 3, 1, 1, 4, 14}, {9, 30, 3, 3, 1, 2, 2, 9, 30},
                           {10, 12, 3, 3, 2, 1, 0, 5, 6},  {6, 5, 3, 1, 2, 1, 0, 3, 3}};

std::vector<double> Expected(const PoolShape& s, const std::vector<float>& in) {
  std::vector<double> out;
  for (int64_t p = 0; p < s.planes; ++p)
    for (int64_t oy = 0; oy < s.out_h; ++oy)
      for (int64_t ox = 0; ox < s.out_w; ++ox) {
        double most = -INFINITY, sum = 0;
        int64_t count = 0;
        for (int64_t ky = 0; ky < s.kernel_h; ++ky)
          for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
            const int64_t y = oy * s.stride_h - s.pad_top + ky * s.dilation_h;
            const int64_t x = ox * s.stride_w - s.pad_left + kx * s.dilation_w;
            const bool inside = y >= 0 && y < s.in_h && x >= 0 && x < s.in_w;
            const bool border = y < s.in_h + s.pad_bottom && x < s.in_w + s.pad_right;
            count += inside || (s.count_border && border);
            if (!inside) continue;
            const double v = in[(p * s.in_h + y) * s.in_w + x];
            most = std::max(most, v);
            sum += v;
          }
        out.push_back(s.kind == PoolKind::kMax ? most : sum / static_cast<double>(count));
      }
  return out;
}

PoolShape ShapeOf(const Case& c, PoolKind kind, bool count_border) {
  return {.kind = kind,
          .planes = 5,
          .in_h = c.h,
          .in_w = c.w,
          .kernel_h = c.kernel_h,
          .kernel_w = c.kernel_w,
          .stride_h = c.stride,
          .stride_w = c.stride,
          .dilation_h = c.dilation,
          .dilation_w = c.dilation,
          .pad_top = c.pad,
          .pad_left = c.pad,
          .pad_bottom = c.pad,
          .pad_right = c.pad,
          .out_h = c.out_h,
          .out_w = c.out_w,
          .count_border = count_border};
}

TEST(Pool, MatchesDouble) {
  ThreadPool two({.threads = 2});
  for (const Case& c : kCases)
    for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage})
      for (const bool count_border : {false, true}) {
        const PoolShape s = ShapeOf(c, kind, count_border);
        auto in = RandomFloats(s.planes * s.in_h * s.in_w, 1);
        for (float& v : in) v -= 2;  // a border of zeros would win
        constexpr float kGuard = -77.0f;
        std::vector<float> out(static_cast<size_t>(s.planes * s.out_h * s.out_w) + 1, kGuard);
        AlignedVector<float> workspace(static_cast<size_t>(PoolWorkspaceFloats(s, 2)) + 1, kGuard);
        Pool(s, {.in = in.data(), .out = out.data(), .workspace = workspace.data(), .pool = &two});
        EXPECT_EQ(out.back(), kGuard);
        EXPECT_EQ(workspace.back(), kGuard);
        out.pop_back();
        EXPECT_TRUE(testing::AllNear(out, Expected(s, in), {.absolute = 1e-5}))
            << c.h << "x" << c.w << " kernel " << c.kernel_h << "x" << c.kernel_w << " kind "
            << static_cast<int>(kind);
      }
}

TEST(Pool, EveryVariantIsTheReference) {
  for (const auto& variant : PoolVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    for (const Case& c : kCases)
      for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage}) {
        const auto in = RandomFloats(c.h * c.w, 2);
        const std::vector<float> rows(c.out_h, 0.5f), cols(c.out_w, 0.25f);
        const auto run = [&](const PoolKernels& kernels) {
          std::vector<float> out(c.out_h * c.out_w);
          AlignedVector<float> scratch(static_cast<size_t>(
              LayoutOf(c.out_h, c.out_w, c.kernel_h, c.kernel_w, c.stride, c.stride, c.dilation, c.dilation)
                  .floats));
          kernels.plane({.kind = kind,
                         .in = in.data(),
                         .in_h = c.h,
                         .in_w = c.w,
                         .kernel_h = c.kernel_h,
                         .kernel_w = c.kernel_w,
                         .stride_h = c.stride,
                         .stride_w = c.stride,
                         .dilation_h = c.dilation,
                         .dilation_w = c.dilation,
                         .pad_top = c.pad,
                         .pad_left = c.pad,
                         .row_share = rows.data(),
                         .col_share = cols.data(),
                         .out = out.data(),
                         .out_h = c.out_h,
                         .out_w = c.out_w,
                         .scratch = scratch.data()});
          return out;
        };
        EXPECT_TRUE(testing::AllNear(run(*variant.run), run(kPoolReference), {.absolute = 1e-5}))
            << variant.name;
      }
  }
}

}  // namespace
}  // namespace celer
