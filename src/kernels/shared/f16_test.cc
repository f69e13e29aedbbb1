// Everything that computes with halves against the f32 reference on the same numbers: products, convolutions,
// and the operators that carry f16 through a network.
#include "kernels/shared/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "device/aligned_vector.h"
#include "kernels/network/conv/conv.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/network/pool/pool.h"
#include "kernels/network/resize/resize.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/gemm/gemm.h"
#include "kernels/shared/gemm/pointwise_reference.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

constexpr double kUnit = 0x1p-11;  // the largest error of rounding to f16, relative

AlignedVector<F16> Halves(const std::vector<float>& numbers) {
  AlignedVector<F16> out(numbers.size());
  ToF16(numbers.data(), out.data(), static_cast<int64_t>(numbers.size()));
  return out;
}
std::vector<float> Floats(std::span<const F16> halves) {
  std::vector<float> out(halves.size());
  ToFloats(halves.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}
// Random numbers that f16 has.
std::vector<float> Random(int64_t n, uint32_t seed) {
  return Floats(Halves(testing::RandomFloats(n, seed)));
}
std::vector<float> Squares(std::vector<float> numbers) {
  for (float& x : numbers) x *= x;
  return numbers;
}

// Of a sum of k products whose squares add up to `squares`: each of at most 512 additions in f16 rounds a sum
// of that size, and such errors add up like their root; six times what is usual. Then a few more roundings.
double Tolerance(int64_t k, double squares, double result) {
  return 3 * kUnit * std::sqrt(static_cast<double>(std::min<int64_t>(k, 512)) * squares) +
         4 * kUnit * (std::abs(result) + 2);
}

template <class Variants, class Fn>
void ForEvery(const Variants& variants, Fn fn) {
  for (const auto& variant : variants) {
    if (variant.RunsHere())
      fn(*variant.run);
    else
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
  }
}

TEST(F16, RoundsToNearestEvenAndBack) {
  const std::vector<float> numbers = {
      0,    -0.0f,    1,        -2.5f,      65504,          65519,           65520,
      1e9f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 1.00048828125f, 1.001464843750f, 3e-5f};
  const std::vector<float> expected = {0,        -0.0f,    1, -2.5f,    65504, 65504,          INFINITY,
                                       INFINITY, 0x1p-24f, 0, 0x1p-23f, 1,     1.00195312500f, 0x1.f7p-16f};
  const auto got = Floats(Halves(numbers));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], expected[i]) << numbers[i];
}

struct Product {
  int64_t m, n, k;
  bool packed_a = false, packed_b = false, row_bias = false, col_bias = false, add = false;
  Pointwise f = {};
};

void Check(const BasicGemmKernels<F16>& kernels, const Product& c, ThreadPool& pool) {
  SCOPED_TRACE(std::string(kernels.name) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" +
               std::to_string(c.k) + " f " + std::to_string(static_cast<int>(c.f.kind)));
  const auto a = Random(c.m * c.k, 1), b = Random(c.k * c.n, 2), add = Random(c.m * c.n, 5);
  const auto row_bias = Random(c.m, 3), col_bias = Random(c.n, 4);
  const auto a16 = Halves(a), b16 = Halves(b), add16 = Halves(add);
  AlignedVector<F16> out(static_cast<size_t>(c.m * c.n) + 1, F16{0x1234});
  AlignedVector<F16> packed_a(static_cast<size_t>(GemmPackedAFloats(c.m, c.k, kernels))),
      packed_b(static_cast<size_t>(GemmPackedBFloats(c.k, c.n, kernels)));
  using Operand = BasicGemmOperand<F16>;
  BasicGemmArgs<F16> args{.m = c.m,
                          .n = c.n,
                          .k = c.k,
                          .a = Operand::Rows(a16.data(), c.k),
                          .b = Operand::Rows(b16.data(), c.n),
                          .out = out.data(),
                          .out_stride = c.n,
                          .pool = &pool};
  if (c.packed_a) {
    GemmPackA(args.a, c.m, c.k, packed_a.data(), kernels);
    args.a = Operand::Packed(packed_a.data());
  }
  if (c.packed_b) {
    GemmPackB(args.b, c.k, c.n, packed_b.data(), kernels);
    args.b = Operand::Packed(packed_b.data());
  }
  args.epilogue = {.row_bias = c.row_bias ? row_bias.data() : nullptr,
                   .col_bias = c.col_bias ? col_bias.data() : nullptr,
                   .add = c.add ? add16.data() : nullptr,
                   .add_stride = c.n,
                   .f = c.f};
  AlignedVector<F16> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, pool.size(), kernels)) + 1,
                               F16{0x1234});
  args.workspace = workspace.data();
  Gemm(args, kernels);
  EXPECT_EQ(workspace.back().bits, 0x1234) << "wrote behind its workspace";
  EXPECT_EQ(out.back().bits, 0x1234) << "wrote behind its output";
  out.pop_back();
  std::vector<double> expected, tolerance;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = static_cast<double>(a[i * c.k + k]) * b[k * c.n + j];
        sum += product;
        squares += product * product;
      }
      if (c.row_bias) sum += row_bias[i];
      if (c.col_bias) sum += col_bias[j];
      if (c.add) sum += add[i * c.n + j];
      expected.push_back(reference::Apply(c.f, sum));
      tolerance.push_back(1.2 * Tolerance(c.k, squares, sum));
    }
  EXPECT_TRUE(testing::AllNear(Floats(out), expected, [&](size_t i) { return tolerance[i]; }));
}

TEST(F16, ProductsAtOddShapes) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  ForEvery(GemmF16Variants(), [&](const BasicGemmKernels<F16>& kernels) {
    for (const bool a : {false, true})
      for (const bool b : {false, true}) {
        Check(kernels, {.m = 1, .n = 1, .k = 1, .packed_a = a, .packed_b = b}, one);
        Check(kernels, {.m = 8, .n = 24, .k = 9, .packed_a = a, .packed_b = b, .row_bias = true}, one);
        Check(kernels, {.m = 33, .n = 101, .k = 67, .packed_a = a, .packed_b = b, .col_bias = true}, three);
        Check(kernels, {.m = 70, .n = 50, .k = 1030, .packed_a = a, .packed_b = b, .add = true}, three);
      }
    for (int64_t m = 1; m <= 9; ++m)
      for (const int64_t n : {3, 8, 11, 16, 23, 25, 49})
        Check(kernels,
              {.m = m, .n = n, .k = 3 + m % 3 * 8 + n % 5, .packed_a = true, .row_bias = true, .add = true},
              one);
    using Kind = Pointwise::Kind;
    for (const Pointwise f :
         {Pointwise::Relu(), Pointwise::Clip(0, 6), Pointwise{Kind::kLeakyRelu, 0.1f},
          Pointwise{Kind::kSigmoid}, Pointwise{Kind::kSilu}, Pointwise{Kind::kTanh},
          Pointwise{Kind::kHardSigmoid, 0.2f, 0.5f}, Pointwise{Kind::kHardSwish}, Pointwise{Kind::kGelu}})
      Check(kernels, {.m = 19, .n = 30, .k = 20, .packed_a = true, .row_bias = true, .add = true, .f = f},
            three);
  });
}

std::vector<float> ReferenceConv(const ConvShape& s, const std::vector<float>& in,
                                 const std::vector<float>& weights, ThreadPool& pool) {
  const auto way = CanDo(ConvWay::kDepthwise, s, kConvReference) ? ConvWay::kDepthwise : ConvWay::kProduct;
  const ConvPlan plan = PlanConv(s, way, kConvReference);
  AlignedVector<float> packed(static_cast<size_t>(ConvPackedFloats(plan))),
      workspace(static_cast<size_t>(ConvWorkspaceFloats(plan, pool.size())) + 1);
  PackConv(plan, weights.data(), packed.data());
  std::vector<float> out(s.batch * s.out_channels * s.out_h() * s.out_w());
  Conv(plan, ConvArgs{.in = in.data(),
                      .weights = packed.data(),
                      .out = out.data(),
                      .workspace = workspace.data(),
                      .pool = &pool});
  return out;
}

void Check(const BasicConvKernels<F16>& kernels, ConvWay way, const ConvShape& s, Pointwise f, bool add,
           ThreadPool& pool) {
  SCOPED_TRACE(std::string(kernels.name) + " way " + std::to_string(static_cast<int>(way)) + " " +
               std::to_string(s.channels) + "x" + std::to_string(s.in_h) + "x" + std::to_string(s.in_w) +
               " to " + std::to_string(s.out_channels) + " k " + std::to_string(s.kernel_h) + " s " +
               std::to_string(s.stride_h) + " groups " + std::to_string(s.groups));
  const int64_t taps = s.channels / s.groups * s.kernel_h * s.kernel_w, plane = s.out_h() * s.out_w();
  const auto in = Random(s.batch * s.channels * s.in_h * s.in_w, 1),
             weights = Random(s.out_channels * taps, 2);
  const auto bias = Random(s.out_channels, 3), residual = Random(s.batch * s.out_channels * plane, 4);
  const auto in16 = Halves(in), residual16 = Halves(residual);
  const BasicConvPlan<F16> plan = PlanConv(s, way, kernels);
  constexpr F16 kGuard = {0x1234};
  AlignedVector<F16> packed(static_cast<size_t>(ConvPackedFloats(plan)) + 1, kGuard),
      workspace(static_cast<size_t>(ConvWorkspaceFloats(plan, pool.size())) + 1, kGuard),
      out(residual.size() + 1, kGuard);
  PackConv(plan, weights.data(), packed.data());
  Conv(plan, BasicConvArgs<F16>{.in = in16.data(),
                                .weights = packed.data(),
                                .bias = bias.data(),
                                .add = add ? residual16.data() : nullptr,
                                .f = f,
                                .out = out.data(),
                                .workspace = workspace.data(),
                                .pool = &pool});
  EXPECT_EQ(packed.back().bits, kGuard.bits);
  EXPECT_EQ(workspace.back().bits, kGuard.bits) << "wrote behind its workspace";
  EXPECT_EQ(out.back().bits, kGuard.bits) << "wrote behind its output";
  out.pop_back();
  const auto sums = ReferenceConv(s, in, weights, pool),
             squares = ReferenceConv(s, Squares(in), Squares(weights), pool);
  std::vector<double> expected, tolerance;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double sum = static_cast<double>(sums[i]) +
                       static_cast<double>(bias[i / static_cast<size_t>(plane) % bias.size()]) +
                       (add ? static_cast<double>(residual[i]) : 0.0);
    expected.push_back(reference::Apply(f, sum));
    // Winograd's sums are of numbers that neighbours went into, with weights of up to 2.5 in each direction,
    // and so are as large at the border, where few products are seen.
    const bool winograd = way == ConvWay::kWinograd;
    const double seen = winograd ? static_cast<double>(taps) / 9 : static_cast<double>(squares[i]);
    tolerance.push_back(1.2 * (winograd ? 12 : 1) * Tolerance(taps, seen, sum));
  }
  EXPECT_TRUE(testing::AllNear(Floats(out), expected, [&](size_t i) { return tolerance[i]; }));
}

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

TEST(F16, ConvolutionsAtOddShapes) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  std::vector<ConvShape> shapes = {
      Square(3, 21, 23, 9, 3, 2, 1),    Square(3, 30, 30, 7, 7, 2, 3),    Square(24, 14, 14, 17, 1, 1, 0),
      Square(16, 9, 9, 12, 1, 2, 0),    Square(17, 7, 7, 19, 3, 1, 1),    Square(5, 28, 28, 10, 3, 1, 1),
      Square(8, 16, 70, 16, 3, 1, 1),   Square(2, 5, 3, 3, 3, 1, 0),      Square(12, 15, 15, 18, 3, 1, 1, 3),
      Square(9, 14, 14, 9, 3, 1, 1, 9), Square(5, 7, 7, 5, 3, 1, 1, 5),   Square(4, 29, 31, 4, 3, 2, 1, 4),
      Square(3, 28, 28, 3, 5, 1, 2, 3), Square(3, 15, 33, 3, 5, 2, 2, 3), Square(2, 20, 20, 2, 7, 1, 3, 2),
      Square(2, 12, 17, 6, 3, 1, 1, 2), Square(3, 16, 16, 3, 3, 3, 1, 3), Square(2, 3, 2, 2, 3, 2, 1, 2),
      Square(70, 1, 1, 37, 1, 1, 0),    Square(40, 30, 33, 20, 3, 1, 1),  Square(300, 6, 9, 18, 3, 1, 1)};
  ConvShape odd = Square(3, 18, 20, 4, 3, 1, 1);  // every dimension on its own
  odd.batch = 2, odd.kernel_w = 2, odd.stride_h = 2, odd.dilation_h = 2, odd.dilation_w = 3;
  odd.pad_left = 4, odd.pad_bottom = 3;
  shapes.push_back(odd);
  ForEvery(ConvF16Variants(), [&](const BasicConvKernels<F16>& kernels) {
    for (const ConvShape& s : shapes)
      for (const ConvWay way :
           {ConvWay::kProduct, ConvWay::kDepthwise, ConvWay::kWinograd, ConvWay::kVector}) {
        if (!CanDo(way, s, kernels)) continue;
        Check(kernels, way, s, {}, false, one);
        Check(kernels, way, s, Pointwise::Relu(), true, three);
        Check(kernels, way, s, {Pointwise::Kind::kSilu}, false, three);
      }
  });
}

TEST(F16, PoolsOfTheLargest) {
  ThreadPool two({.threads = 2});
  for (const int64_t stride : {1, 2}) {
    const PoolShape s{.planes = 3,
                      .in_h = 13,
                      .in_w = 21,
                      .kernel_h = 3,
                      .kernel_w = 5,
                      .stride_h = stride,
                      .stride_w = stride,
                      .pad_top = 1,
                      .pad_left = 2,
                      .pad_bottom = 1,
                      .pad_right = 2,
                      .out_h = (13 - 1) / stride + 1,
                      .out_w = (21 - 1) / stride + 1};
    const auto in = Random(s.planes * s.in_h * s.in_w, 1);
    const auto in16 = Halves(in);
    const auto size = static_cast<size_t>(s.planes * s.out_h * s.out_w);
    AlignedVector<float> expected(size), workspace(static_cast<size_t>(PoolWorkspaceFloats(s, 2)));
    AlignedVector<F16> got(size);
    Pool(s, PoolArgs{in.data(), expected.data(), workspace.data(), &two});
    Pool(s, BasicPoolArgs<F16>{in16.data(), got.data(), workspace.data(), &two});
    EXPECT_EQ(Floats(got), std::vector<float>(expected.begin(), expected.end())) << stride;
  }
}

TEST(F16, ElementsAndRowsAreComputedInF32AndRoundedOnce) {
  ThreadPool two({.threads = 2});
  for (const int64_t n : {1, 7, 600, 40000}) {
    const auto a = Random(n, 1), b = Random(n, 2);
    const auto a16 = Halves(a), b16 = Halves(b);
    std::vector<float> expected(n);
    AlignedVector<F16> got(static_cast<size_t>(n));
    const Pointwise silu{Pointwise::Kind::kSilu};
    ApplyPointwise(silu, a.data(), expected.data(), n, two);
    ApplyPointwise(silu, a16.data(), got.data(), n, two);
    EXPECT_EQ(Floats(got), Floats(Halves(expected)));
    for (const auto& [x, y] : {std::pair{1, 1}, {1, 0}, {0, 1}, {0, 0}}) {
      BinaryRow(Binary::kMul, {}, a.data(), x, b.data(), y, expected.data(), n);
      BinaryRow(Binary::kMul, {}, a16.data(), x, b16.data(), y, got.data(), n);
      EXPECT_EQ(Floats(got), Floats(Halves(expected))) << x << y;
    }
    float mean = 0;
    MeanOfRows(a.data(), &mean, 1, n, two);
    MeanOfRows(a16.data(), got.data(), 1, n, two);
    EXPECT_NEAR(Floats(got)[0], mean, kUnit * std::abs(mean) + 1e-6);
  }
}

TEST(F16, Resizing) {
  ThreadPool two({.threads = 2});
  const auto in = Random(2 * 5 * 7, 1);
  const auto in16 = Halves(in);
  ResizeAxis y{.first = {}}, x{.first = {}};
  for (int i = 0; i < 10; ++i) y.first.push_back(i / 2);
  for (int i = 0; i < 14; ++i) x.first.push_back(i / 2);
  for (const bool linear : {false, true}) {
    if (linear) {
      for (ResizeAxis* const axis : {&y, &x})
        for (size_t i = 0; i < axis->first.size(); ++i) {
          axis->second.push_back(std::min(axis->first[i] + 1, axis == &y ? 4 : 6));
          axis->weight.push_back(i % 2 ? 0.5f : 0.25f);
        }
    }
    AlignedVector<float> expected(2 * 10 * 14);
    AlignedVector<F16> got(expected.size());
    ResizePlanes(in.data(), 2, 5, 7, y, x, expected.data(), two);
    ResizePlanes(in16.data(), 2, 5, 7, y, x, got.data(), two);
    EXPECT_EQ(Floats(got), Floats(Halves({expected.begin(), expected.end()}))) << linear;
  }
}

}  // namespace
}  // namespace celer
