#include "kernels/network/conv/transposed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/aligned_vector.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

std::vector<double> Expected(const TransposedConvShape& s, const std::vector<float>& x,
                             const std::vector<float>& w, const std::vector<float>& bias) {
  std::vector<double> out(s.batch * s.out_channels * s.out_h * s.out_w);
  const int64_t ig = s.channels / s.groups, og = s.out_channels / s.groups;
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.out_channels; ++o) {
      double* const plane = out.data() + (n * s.out_channels + o) * s.out_h * s.out_w;
      std::fill_n(plane, s.out_h * s.out_w, bias[o]);
      for (int64_t i = o / og * ig; i < (o / og + 1) * ig; ++i)
        for (int64_t y = 0; y < s.in_h; ++y)
          for (int64_t c = 0; c < s.in_w; ++c)
            for (int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t oy = y * s.stride_h + ky * s.dilation_h - s.pad_top,
                              ox = c * s.stride_w + kx * s.dilation_w - s.pad_left;
                if (oy < 0 || oy >= s.out_h || ox < 0 || ox >= s.out_w) continue;
                plane[oy * s.out_w + ox] +=
                    static_cast<double>(x[((n * s.channels + i) * s.in_h + y) * s.in_w + c]) *
                    w[((i * og + o % og) * s.kernel_h + ky) * s.kernel_w + kx];
              }
    }
  for (double& v : out) v = std::max(v, 0.0);
  return out;
}

TEST(TransposedConv, MatchesDouble) {
  const TransposedConvShape shapes[] = {
      {.batch = 2,
       .channels = 6,
       .in_h = 7,
       .in_w = 9,
       .out_channels = 10,
       .kernel_h = 2,
       .kernel_w = 2,
       .stride_h = 2,
       .stride_w = 2,
       .out_h = 14,
       .out_w = 18},
      {.channels = 5,
       .in_h = 6,
       .in_w = 4,
       .out_channels = 3,
       .kernel_h = 3,
       .kernel_w = 3,
       .stride_h = 3,
       .stride_w = 3,
       .out_h = 18,
       .out_w = 12},
      {.channels = 4,
       .in_h = 5,
       .in_w = 8,
       .out_channels = 6,
       .groups = 2,
       .kernel_h = 3,
       .kernel_w = 4,
       .stride_h = 2,
       .stride_w = 3,
       .pad_top = 1,
       .pad_left = 2,
       .out_h = 10,
       .out_w = 22},
      {.channels = 3,
       .in_h = 9,
       .in_w = 11,
       .out_channels = 2,
       .kernel_h = 3,
       .kernel_w = 3,
       .dilation_h = 2,
       .dilation_w = 2,
       .pad_top = 2,
       .pad_left = 2,
       .out_h = 9,
       .out_w = 11},
  };
  for (const TransposedConvShape& s : shapes) {
    const auto x = RandomFloats(s.batch * s.channels * s.in_h * s.in_w, 1),
               w = RandomFloats(s.channels * s.out_channels / s.groups * s.kernel_h * s.kernel_w, 2),
               bias = RandomFloats(s.out_channels, 3);
    AlignedVector<float> packed(static_cast<size_t>(TransposedConvPackedFloats(s)));
    PackTransposedConv(s, w.data(), packed.data());
    for (const int threads : {1, 3}) {
      ThreadPool pool({.threads = threads});
      AlignedVector<float> workspace(static_cast<size_t>(TransposedConvWorkspaceFloats(s, threads)));
      std::vector<float> out(s.batch * s.out_channels * s.out_h * s.out_w, NAN);
      TransposedConv(s, {.in = x.data(),
                         .weights = packed.data(),
                         .bias = bias.data(),
                         .f = Pointwise::Relu(),
                         .out = out.data(),
                         .workspace = workspace.data(),
                         .pool = &pool});
      EXPECT_TRUE(testing::AllNear(out, Expected(s, x, w, bias), {.absolute = 2e-5})) << s.kernel_w;
    }
  }
}

}  // namespace
}  // namespace celer
