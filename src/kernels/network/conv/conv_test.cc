#include "kernels/network/conv/conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "device/aligned_vector.h"
#include "kernels/shared/gemm/pointwise_reference.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Ending {
  bool bias = true, add = false, add_last = false, in_place = false;
  Pointwise f = {};
};

std::string Describe(const ConvShape& s) {
  return std::to_string(s.batch) + "x" + std::to_string(s.channels) + "x" + std::to_string(s.in_h) + "x" +
         std::to_string(s.in_w) + " to " + std::to_string(s.out_channels) + " by " +
         std::to_string(s.kernel_h) + "x" + std::to_string(s.kernel_w) + " stride " +
         std::to_string(s.stride_h) + "," + std::to_string(s.stride_w) + " groups " +
         std::to_string(s.groups);
}

void Check(const ConvKernels& kernels, ConvWay way, const ConvShape& s, const Ending& e, ThreadPool& pool) {
  SCOPED_TRACE(std::string(kernels.name) + " way " + std::to_string(static_cast<int>(way)) + " " +
               Describe(s) + " f " + std::to_string(static_cast<int>(e.f.kind)) + " threads " +
               std::to_string(pool.size()));
  const int64_t out_h = s.out_h(), out_w = s.out_w(), plane = out_h * out_w;
  const int64_t group_in = s.channels / s.groups, group_out = s.out_channels / s.groups;
  const int64_t taps = s.kernel_h * s.kernel_w;
  const auto in = RandomFloats(s.batch * s.channels * s.in_h * s.in_w, 1);
  const auto weights = RandomFloats(s.out_channels * group_in * taps, 2),
             bias = RandomFloats(s.out_channels, 3);
  const auto add = RandomFloats(s.batch * s.out_channels * plane, 4);
  constexpr float kGuard = -77.0f;
  std::vector<float> out = e.in_place ? add : std::vector<float>(add.size(), kGuard);
  out.push_back(kGuard);

  const ConvPlan plan = PlanConv(s, way, kernels);
  AlignedVector<float> packed(static_cast<size_t>(ConvPackedFloats(plan)) + 1, kGuard);
  PackConv(plan, weights.data(), packed.data());
  EXPECT_EQ(packed.back(), kGuard);
  AlignedVector<float> workspace(static_cast<size_t>(ConvWorkspaceFloats(plan, pool.size())) + 1, kGuard);
  Conv(plan, {.in = in.data(),
              .weights = packed.data(),
              .bias = e.bias ? bias.data() : nullptr,
              .add = e.add ? (e.in_place ? out.data() : add.data()) : nullptr,
              .add_last = e.add_last,
              .f = e.f,
              .out = out.data(),
              .workspace = workspace.data(),
              .pool = &pool});
  EXPECT_EQ(workspace.back(), kGuard) << "wrote behind its workspace";
  EXPECT_EQ(out.back(), kGuard) << "wrote behind its output";
  out.pop_back();

  std::vector<double> expected, tolerance;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t o = 0; o < s.out_channels; ++o)
      for (int64_t oy = 0; oy < out_h; ++oy)
        for (int64_t ox = 0; ox < out_w; ++ox) {
          double sum = 0, size = 0;
          for (int64_t c = 0; c < group_in; ++c)
            for (int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t y = oy * s.stride_h - s.pad_top + ky * s.dilation_h;
                const int64_t x = ox * s.stride_w - s.pad_left + kx * s.dilation_w;
                if (y < 0 || y >= s.in_h || x < 0 || x >= s.in_w) continue;
                const int64_t channel = b * s.channels + o / group_out * group_in + c;
                const double product = static_cast<double>(in[(channel * s.in_h + y) * s.in_w + x]) *
                                       weights[(o * group_in + c) * taps + ky * s.kernel_w + kx];
                sum += product;
                size += std::abs(product);
              }
          if (e.bias) sum += bias[o];
          const double extra = e.add ? add[expected.size()] : 0;
          expected.push_back(e.add_last ? reference::Apply(e.f, sum) + extra
                                        : reference::Apply(e.f, sum + extra));
          // Winograd's transforms add up neighbours that this output does not see, weighted by up to 2.5^2 on
          // the way in and 8 on the way out; inputs and weights are below 1.
          const double seen = way == ConvWay::kWinograd ? 8.0 * static_cast<double>(9 * group_in) : size;
          tolerance.push_back(1.2 * testing::SumTolerance(group_in * taps + 3, size + 3) +
                              (way == ConvWay::kWinograd ? 2.4e-7 * seen : 0) + 5e-7 * std::abs(sum));
        }
  EXPECT_TRUE(testing::AllNear(out, expected, [&](size_t i) { return tolerance[i]; }));
}

template <class Fn>
void ForEveryVariant(Fn fn) {
  for (const auto& variant : ConvVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    fn(*variant.run);
  }
}

constexpr ConvWay kWays[] = {ConvWay::kProduct, ConvWay::kDepthwise, ConvWay::kWinograd, ConvWay::kVector};

ConvShape Square(int64_t channels, int64_t h, int64_t w, int64_t out_channels, int64_t kernel, int64_t stride,
                 int64_t pad, int64_t groups = 1) {
  return {.channels = channels,
          .in_h = h,
          .in_w = w,
          .out_channels = out_channels,
          .groups = groups,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad_top = pad,
          .pad_left = pad,
          .pad_bottom = pad,
          .pad_right = pad};
}

TEST(Conv, EveryWayOfEveryVariantMatchesDouble) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  std::vector<ConvShape> shapes = {
      Square(3, 21, 23, 9, 3, 2, 1), Square(3, 30, 30, 7, 7, 2, 3), Square(24, 14, 14, 17, 1, 1, 0),
      Square(16, 9, 9, 12, 1, 2, 0), Square(17, 7, 7, 19, 3, 1, 1), Square(5, 28, 28, 10, 3, 1, 1),
      Square(8, 16, 40, 16, 3, 1, 1), Square(2, 5, 3, 3, 3, 1, 0), Square(1, 1, 1, 1, 3, 1, 1),
      Square(6, 13, 50, 33, 3, 1, 2), Square(12, 15, 15, 18, 3, 1, 1, 3), Square(4, 8, 70, 2, 5, 1, 2),
      // columns that threads pack together
      Square(48, 7, 7, 64, 3, 1, 1), Square(40, 15, 14, 72, 3, 2, 1),
      // depthwise
      Square(9, 14, 14, 9, 3, 1, 1, 9), Square(5, 7, 7, 5, 3, 1, 1, 5), Square(4, 29, 31, 4, 3, 2, 1, 4),
      Square(3, 28, 28, 3, 5, 1, 2, 3), Square(3, 15, 33, 3, 5, 2, 2, 3), Square(2, 20, 20, 2, 7, 1, 3, 2),
      Square(2, 12, 17, 6, 3, 1, 1, 2), Square(3, 16, 16, 3, 3, 3, 1, 3), Square(2, 3, 2, 2, 3, 2, 1, 2),
      Square(3, 8, 8, 3, 2, 2, 0, 3),
      // one pixel
      Square(70, 1, 1, 37, 1, 1, 0), Square(5, 3, 3, 13, 3, 2, 0)};
  ConvShape odd = Square(3, 18, 20, 4, 3, 1, 1);  // every dimension on its own
  odd.batch = 2;
  odd.kernel_w = 2;
  odd.stride_h = 2;
  odd.dilation_h = 2;
  odd.dilation_w = 3;
  odd.pad_left = 4;
  odd.pad_bottom = 3;
  shapes.push_back(odd);
  odd.groups = odd.out_channels = 3;
  shapes.push_back(odd);
  ConvShape uneven = Square(7, 22, 19, 9, 3, 1, 1);  // of Winograd, with borders that differ
  uneven.batch = 3;
  uneven.pad_top = 0;
  uneven.pad_right = 4;
  shapes.push_back(uneven);
  ForEveryVariant([&](const ConvKernels& kernels) {
    for (const ConvShape& s : shapes)
      for (const ConvWay way : kWays)
        if (CanDo(way, s, kernels)) {
          Check(kernels, way, s, {}, one);
          Check(kernels, way, s, {.add = true, .f = Pointwise::Relu()}, three);
        }
  });
}

TEST(Conv, ManyTilesAndManyChannels) {
  ThreadPool one({.threads = 1}), two({.threads = 2});
  // Several blocks of tiles, alone and together; more channels than one part of k.
  Check(ChosenConv(), ConvWay::kWinograd, Square(40, 60, 61, 20, 3, 1, 1), {}, two);
  Check(ChosenConv(), ConvWay::kWinograd, Square(40, 60, 61, 20, 3, 1, 1), {}, one);
  Check(ChosenConv(), ConvWay::kWinograd, Square(530, 5, 9, 18, 3, 1, 1), {}, two);
  Check(ChosenConv(), ConvWay::kProduct, Square(70, 12, 20, 18, 3, 1, 1), {}, two);
}

TEST(Conv, EveryEnding) {
  ThreadPool two({.threads = 2});
  using Kind = Pointwise::Kind;
  const ConvShape product = Square(5, 11, 13, 9, 3, 2, 1), depthwise = Square(4, 11, 13, 4, 3, 1, 1, 4),
                  winograd = Square(5, 18, 19, 6, 3, 1, 1);
  ForEveryVariant([&](const ConvKernels& kernels) {
    for (const Pointwise f : {Pointwise{}, Pointwise::Clip(0, 6), Pointwise{Kind::kSilu},
                              Pointwise{Kind::kSigmoid}, Pointwise{Kind::kHardSwish}})
      for (const bool add : {false, true})
        for (const bool last : {false, true})
          for (const bool in_place : {false, true}) {
            const Ending ending{.bias = !last, .add = add, .add_last = last, .in_place = in_place, .f = f};
            Check(kernels, ConvWay::kProduct, product, ending, two);
            Check(kernels, ConvWay::kDepthwise, depthwise, ending, two);
            if (CanDo(ConvWay::kWinograd, winograd, kernels))
              Check(kernels, ConvWay::kWinograd, winograd, ending, two);
          }
  });
}

TEST(Conv, ThreadsDoNotChangeTheResult) {
  const ConvShape shapes[] = {Square(20, 33, 35, 24, 3, 1, 1), Square(20, 33, 35, 24, 3, 2, 1),
                              Square(20, 33, 35, 20, 3, 1, 1, 20)};
  for (const ConvShape& s : shapes) {
    const auto in = RandomFloats(s.channels * s.in_h * s.in_w, 1);
    const auto weights = RandomFloats(s.out_channels * s.channels / s.groups * 9, 2);
    const ConvPlan plan = PlanConv(s);
    AlignedVector<float> packed(static_cast<size_t>(ConvPackedFloats(plan)));
    PackConv(plan, weights.data(), packed.data());
    std::vector<std::vector<float>> outs;
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool({.threads = threads});
      AlignedVector<float> workspace(static_cast<size_t>(ConvWorkspaceFloats(plan, threads)));
      outs.emplace_back(static_cast<size_t>(s.out_channels * s.out_h() * s.out_w()));
      Conv(plan, {.in = in.data(),
                  .weights = packed.data(),
                  .out = outs.back().data(),
                  .workspace = workspace.data(),
                  .pool = &pool});
      EXPECT_EQ(outs.back(), outs.front()) << Describe(s) << " threads " << threads;
    }
  }
}

}  // namespace
}  // namespace celer
