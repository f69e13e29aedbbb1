#include "kernels/shared/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "device/aligned_vector.h"
#include "kernels/shared/gemm/pointwise_reference.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

enum class Form { kRows, kTransposed, kPacked };

struct Case {
  int64_t m, n, k;
  Form a = Form::kRows, b = Form::kRows;
  bool row_bias = false, col_bias = false, add = false, add_last = false, in_place = false;
  Pointwise f = {};
  int64_t batch = 1;
};

// The operand of one product, from [rows, cols] dense; what it points to is kept in `store`.
GemmOperand Make(Form form, bool is_a, const std::vector<float>& dense, int64_t rows, int64_t cols,
                 int64_t batch, const GemmKernels& kernels, AlignedVector<float>& store) {
  const int64_t one = rows * cols;
  if (form == Form::kRows) {
    store.assign(dense.begin(), dense.end());
    return GemmOperand::Rows(store.data(), cols, one);
  }
  if (form == Form::kTransposed) {
    store.resize(dense.size());
    for (int64_t p = 0; p < batch; ++p)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) store[p * one + c * rows + r] = dense[p * one + r * cols + c];
    return GemmOperand::Transposed(store.data(), rows, one);
  }
  const int64_t floats =
      is_a ? GemmPackedAFloats(rows, cols, kernels) : GemmPackedBFloats(rows, cols, kernels);
  store.resize(static_cast<size_t>(floats * batch));
  for (int64_t p = 0; p < batch; ++p) {
    const GemmOperand plain = GemmOperand::Rows(dense.data() + p * one, cols);
    if (is_a)
      GemmPackA(plain, rows, cols, store.data() + p * floats, kernels);
    else
      GemmPackB(plain, rows, cols, store.data() + p * floats, kernels);
  }
  return GemmOperand::Packed(store.data(), floats);
}

void Check(const GemmKernels& kernels, const Case& c, ThreadPool& pool) {
  SCOPED_TRACE(std::string(kernels.name) + " m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " +
               std::to_string(c.k) + " f " + std::to_string(static_cast<int>(c.f.kind)) + " threads " +
               std::to_string(pool.size()));
  const auto a = RandomFloats(c.batch * c.m * c.k, 1), b = RandomFloats(c.batch * c.k * c.n, 2);
  const auto row_bias = RandomFloats(c.m, 3), col_bias = RandomFloats(c.n, 4);
  const int64_t stride = c.n + 3;
  const auto add = RandomFloats(c.batch * c.m * stride, 5);
  constexpr float kUntouched = 1234.5f;
  std::vector<float> out(add.size(), kUntouched);
  if (c.in_place) out = add;

  AlignedVector<float> a_store, b_store;
  GemmArgs args{.m = c.m,
                .n = c.n,
                .k = c.k,
                .a = Make(c.a, true, a, c.m, c.k, c.batch, kernels, a_store),
                .b = Make(c.b, false, b, c.k, c.n, c.batch, kernels, b_store),
                .out = out.data(),
                .out_stride = stride,
                .batch = c.batch,
                .out_batch_stride = c.m * stride,
                .add_batch_stride = c.m * stride,
                .pool = &pool};
  args.epilogue = {.row_bias = c.row_bias ? row_bias.data() : nullptr,
                   .col_bias = c.col_bias ? col_bias.data() : nullptr,
                   .add = c.add ? (c.in_place ? out.data() : add.data()) : nullptr,
                   .add_stride = stride,
                   .add_last = c.add_last,
                   .f = c.f};
  AlignedVector<float> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, pool.size(), kernels)) + 1);
  constexpr float kGuard = -77.0f;
  workspace.back() = kGuard;
  args.workspace = workspace.data();
  Gemm(args, kernels);
  EXPECT_EQ(workspace.back(), kGuard) << "wrote behind its workspace";

  std::vector<double> expected, tolerance;
  std::vector<float> got;
  for (int64_t p = 0; p < c.batch; ++p)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < stride; ++j) {
        const int64_t at = (p * c.m + i) * stride + j;
        got.push_back(out[at]);
        if (j >= c.n) {
          expected.push_back(c.in_place ? add[at] : kUntouched);
          tolerance.push_back(0);
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double product = static_cast<double>(a[(p * c.m + i) * c.k + k]) * b[(p * c.k + k) * c.n + j];
          sum += product;
          size += std::abs(product);
        }
        if (c.row_bias) sum += row_bias[i];
        if (c.col_bias) sum += col_bias[j];
        const double extra = c.add ? add[at] : 0;
        const double result =
            c.add_last ? reference::Apply(c.f, sum) + extra : reference::Apply(c.f, sum + extra);
        expected.push_back(result);
        // No function here is steeper than 1.2; their own error is below 5e-7 of their argument.
        tolerance.push_back(1.2 * testing::SumTolerance(c.k + 3, size + 3) + 5e-7 * std::abs(sum));
      }
  EXPECT_TRUE(testing::AllNear(got, expected, [&](size_t i) { return tolerance[i]; }));
}

template <class Fn>
void ForEveryVariant(Fn fn) {
  for (const auto& variant : GemmVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    fn(*variant.run);
  }
}

TEST(Gemm, EveryVariantAtOddShapesMatchesDouble) {
  ThreadPool one({.threads = 1}), three({.threads = 3});
  ForEveryVariant([&](const GemmKernels& kernels) {
    for (const Form a : {Form::kRows, Form::kTransposed, Form::kPacked})
      for (const Form b : {Form::kRows, Form::kTransposed, Form::kPacked}) {
        Check(kernels, {.m = 1, .n = 1, .k = 1, .a = a, .b = b}, one);
        Check(kernels, {.m = 7, .n = 13, .k = 5, .a = a, .b = b, .row_bias = true}, three);
        Check(kernels, {.m = 8, .n = 48, .k = 8, .a = a, .b = b, .col_bias = true}, one);
        Check(kernels, {.m = 33, .n = 101, .k = 67, .a = a, .b = b, .row_bias = true}, three);
        Check(kernels, {.m = 70, .n = 50, .k = 1030, .a = a, .b = b, .row_bias = true}, three);
      }
    // So large that all of a is packed first.
    Check(kernels, {.m = 330, .n = 101, .k = 1001, .row_bias = true}, three);
    for (int64_t m = 1; m <= 9; ++m)
      for (const int64_t n : {1, 3, 4, 5, 8, 11, 12, 16, 25, 33, 47}) {
        const int64_t k = 3 + m % 3 * 8 + n % 5;
        Check(kernels, {.m = m, .n = n, .k = k, .a = Form::kPacked, .row_bias = true, .add = true}, one);
      }
    // A few columns behind whole panels, with and without enough steps to have tiles of their own.
    for (const int64_t n : {25, 49, 50, 51, 52, 97})
      for (const int64_t k : {31, 32, 45})
        Check(kernels, {.m = 20, .n = n, .k = k, .a = Form::kPacked, .row_bias = true, .add = true}, three);
  });
}

TEST(Gemm, EveryEpilogue) {
  ThreadPool two({.threads = 2});
  using Kind = Pointwise::Kind;
  const Pointwise functions[] = {{},
                                 Pointwise::Relu(),
                                 Pointwise::Clip(0, 6),
                                 {Kind::kLeakyRelu, 0.1f},
                                 {Kind::kSigmoid},
                                 {Kind::kSilu},
                                 {Kind::kTanh},
                                 {Kind::kHardSigmoid, 0.2f, 0.5f},
                                 {Kind::kHardSwish},
                                 {Kind::kGelu},
                                 {Kind::kGeluTanh},
                                 {Kind::kErf}};
  ForEveryVariant([&](const GemmKernels& kernels) {
    for (const Pointwise& f : functions)
      for (const bool add_last : {false, true})
        for (const bool in_place : {false, true})
          for (const int64_t k : {20, 1100}) {
            Check(kernels,
                  {.m = 19,
                   .n = 30,
                   .k = k,
                   .a = Form::kPacked,
                   .row_bias = true,
                   .add = true,
                   .add_last = add_last,
                   .in_place = in_place,
                   .f = f},
                  two);
            Check(kernels, {.m = 9, .n = 52, .k = k, .b = Form::kPacked, .col_bias = true, .f = f}, two);
          }
  });
}

TEST(Gemm, Batches) {
  ThreadPool two({.threads = 2});
  ForEveryVariant([&](const GemmKernels& kernels) {
    for (const Form b : {Form::kRows, Form::kTransposed, Form::kPacked})
      Check(kernels, {.m = 21, .n = 37, .k = 16, .b = b, .col_bias = true, .add = true, .batch = 5}, two);
  });
}

TEST(Gemm, NothingToMultiply) {
  ThreadPool one({.threads = 1});
  ForEveryVariant([&](const GemmKernels& kernels) {
    Check(kernels, {.m = 3, .n = 5, .k = 0, .row_bias = true, .f = Pointwise::Relu()}, one);
    Check(kernels, {.m = 0, .n = 5, .k = 4}, one);
  });
}

TEST(Gemm, ThreadsDoNotChangeTheResult) {
  const int64_t m = 100, n = 300, k = 700;
  const auto a = RandomFloats(m * k, 1), b = RandomFloats(k * n, 2);
  std::vector<std::vector<float>> outs;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool({.threads = threads});
    outs.emplace_back(static_cast<size_t>(m * n));
    GemmArgs args{.m = m,
                  .n = n,
                  .k = k,
                  .a = GemmOperand::Rows(a.data(), k),
                  .b = GemmOperand::Rows(b.data(), n),
                  .out = outs.back().data(),
                  .out_stride = n,
                  .pool = &pool};
    AlignedVector<float> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, threads)));
    args.workspace = workspace.data();
    Gemm(args);
    EXPECT_EQ(outs.back(), outs.front()) << threads;
  }
}

struct ConvCase {
  int64_t channels, h, w, kernel_h, kernel_w, stride, dilation, pad, out_channels;
};

// The im2col operand against loops over the image, also where the output is narrower than a vector.
TEST(Gemm, GatheredColumns) {
  ThreadPool two({.threads = 2});
  ForEveryVariant([&](const GemmKernels& kernels) {
    for (const ConvCase& c : {ConvCase{3, 9, 11, 3, 3, 1, 1, 1, 5}, ConvCase{4, 7, 7, 3, 3, 1, 1, 1, 8},
                              ConvCase{3, 30, 53, 3, 3, 2, 1, 1, 16}, ConvCase{2, 20, 60, 5, 5, 1, 1, 2, 9},
                              ConvCase{5, 14, 14, 1, 1, 2, 1, 0, 11}, ConvCase{2, 17, 19, 3, 2, 1, 3, 4, 3},
                              ConvCase{1, 5, 100, 2, 7, 3, 1, 3, 4}, ConvCase{64, 12, 29, 3, 3, 1, 1, 1, 10},
                              ConvCase{1, 3, 1, 3, 1, 1, 1, 1, 2}}) {
      Im2col g{.channels = c.channels,
               .in_h = c.h,
               .in_w = c.w,
               .kernel_h = c.kernel_h,
               .kernel_w = c.kernel_w,
               .stride_h = c.stride,
               .stride_w = c.stride,
               .dilation_h = c.dilation,
               .dilation_w = c.dilation,
               .pad_top = c.pad,
               .pad_left = c.pad};
      g.out_h = (c.h + 2 * c.pad - c.dilation * (c.kernel_h - 1) - 1) / c.stride + 1;
      g.out_w = (c.w + 2 * c.pad - c.dilation * (c.kernel_w - 1) - 1) / c.stride + 1;
      const int64_t k = g.rows(), n = g.cols(), m = c.out_channels;
      const auto image = RandomFloats(c.channels * c.h * c.w, 7), weights = RandomFloats(m * k, 8);
      std::vector<float> out(m * n);
      GemmArgs args{.m = m,
                    .n = n,
                    .k = k,
                    .a = GemmOperand::Rows(weights.data(), k),
                    .b = GemmOperand::Gathered(image.data(), g),
                    .out = out.data(),
                    .out_stride = n,
                    .pool = &two};
      AlignedVector<float> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, 2, kernels)));
      args.workspace = workspace.data();
      Gemm(args, kernels);
      std::vector<double> expected, sizes;
      for (int64_t o = 0; o < m; ++o)
        for (int64_t oy = 0; oy < g.out_h; ++oy)
          for (int64_t ox = 0; ox < g.out_w; ++ox) {
            double sum = 0, size = 0;
            for (int64_t ch = 0; ch < c.channels; ++ch)
              for (int64_t ky = 0; ky < c.kernel_h; ++ky)
                for (int64_t kx = 0; kx < c.kernel_w; ++kx) {
                  const int64_t y = oy * c.stride - c.pad + ky * c.dilation;
                  const int64_t x = ox * c.stride - c.pad + kx * c.dilation;
                  if (y < 0 || y >= c.h || x < 0 || x >= c.w) continue;
                  const double product =
                      static_cast<double>(weights[o * k + (ch * c.kernel_h + ky) * c.kernel_w + kx]) *
                      image[(ch * c.h + y) * c.w + x];
                  sum += product;
                  size += std::abs(product);
                }
            expected.push_back(sum);
            sizes.push_back(size);
          }
      EXPECT_TRUE(
          testing::AllNear(out, expected, [&](size_t i) { return testing::SumTolerance(k, sizes[i]); }))
          << kernels.name << " " << c.channels << "x" << c.h << "x" << c.w;
    }
  });
}

}  // namespace
}  // namespace celer
