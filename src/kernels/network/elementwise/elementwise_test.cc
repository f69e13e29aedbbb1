#include "kernels/network/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/shared/gemm/pointwise_reference.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;
using Kind = Pointwise::Kind;

template <class Fn>
void ForEveryVariant(Fn fn) {
  for (const auto& variant : ElementwiseVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    SCOPED_TRACE(variant.name);
    fn(*variant.run);
  }
}

constexpr Pointwise kFunctions[] = {{Kind::kNone},
                                    {Kind::kClip, -1, 2.5f},
                                    {Kind::kLeakyRelu, 0.1f},
                                    {Kind::kSigmoid},
                                    {Kind::kSilu},
                                    {Kind::kTanh},
                                    {Kind::kHardSigmoid, 0.2f, 0.5f},
                                    {Kind::kHardSwish},
                                    {Kind::kGelu},
                                    {Kind::kGeluTanh},
                                    {Kind::kErf},
                                    {Kind::kExp}};

TEST(Elementwise, EveryFunctionMatchesDouble) {
  ForEveryVariant([](const ElementwiseKernels& kernels) {
    for (const Pointwise& f : kFunctions)
      for (const float scale : {0.01f, 1.0f, 12.0f})
        for (const int64_t n : {1, 3, 7, 16, 33, 250}) {
          const auto x = RandomFloats(n, 1, scale);
          std::vector<float> out(x.size());
          kernels.unary(f, x.data(), out.data(), n);
          std::vector<double> expected;
          for (const float v : x) expected.push_back(reference::Apply(f, v));
          // exp() is off by 2 ulp and a quotient by one more; erf far from 0 by 1.5e-7 of 1, which gelu
          // multiplies by x; a x + b is rounded twice where the CPU has no instruction for it.
          const auto tolerance = [&](size_t i) {
            const bool by_erfc = f.kind == Kind::kErf || f.kind == Kind::kGelu || f.kind == Kind::kGeluTanh;
            const double linear = f.kind == Kind::kHardSigmoid ? std::abs(f.a * x[i]) + std::abs(f.b) : 0;
            return 6e-7 * std::abs(expected[i]) + (by_erfc ? 5e-7 * std::abs(x[i]) : 1e-37) + 1.2e-7 * linear;
          };
          EXPECT_TRUE(testing::AllNear(out, expected, tolerance))
              << static_cast<int>(f.kind) << " scale " << scale << " n " << n;
        }
  });
}

TEST(Elementwise, LargeInputsAndNan) {
  const float x[] = {-1e30f, -1000, -89, 89, 1000, 1e30f, NAN, -INFINITY, INFINITY};
  ForEveryVariant([&](const ElementwiseKernels& kernels) {
    for (const Kind kind : {Kind::kSigmoid, Kind::kTanh, Kind::kErf}) {
      float out[9];
      kernels.unary({kind}, x, out, 9);
      const float low = kind == Kind::kSigmoid ? 0.0f : -1.0f;
      for (const int i : {0, 1, 2, 7}) EXPECT_NEAR(out[i], low, 1e-30) << x[i];
      for (const int i : {3, 4, 5, 8}) EXPECT_EQ(out[i], 1.0f) << x[i];
      EXPECT_TRUE(std::isnan(out[6])) << static_cast<int>(kind);
    }
    float out[7];
    kernels.unary({Kind::kSilu}, x, out, 7);
    EXPECT_NEAR(out[1], 0, 1e-30);
    EXPECT_NEAR(out[2], 0, 1e-30);
    EXPECT_EQ(out[3], 89.0f);
    EXPECT_EQ(out[5], 1e30f);
    EXPECT_TRUE(std::isnan(out[6]));
  });
}

TEST(Elementwise, BinaryWithBroadcasting) {
  ThreadPool pool({.threads = 2});
  const int64_t rows = 13, cols = 37;
  const auto a = RandomFloats(rows * cols, 1), b = RandomFloats(rows * cols, 2, 3.0f);
  const BinaryOperand forms[] = {{b.data(), cols, 1}, {b.data(), 1, 0}, {b.data(), 0, 1}, {b.data(), 0, 0}};
  for (const Binary op : {Binary::kAdd, Binary::kSub, Binary::kMul, Binary::kDiv, Binary::kMax, Binary::kMin})
    for (const BinaryOperand& form : forms)
      for (const bool swapped : {false, true})
        for (const Pointwise& f : {Pointwise{}, Pointwise::Relu(), Pointwise{Kind::kSigmoid}}) {
          std::vector<float> out(a.size());
          const BinaryOperand dense{a.data(), cols, 1};
          ApplyBinary({.op = op,
                       .a = swapped ? form : dense,
                       .b = swapped ? dense : form,
                       .f = f,
                       .rows = rows,
                       .cols = cols,
                       .out = out.data(),
                       .pool = &pool});
          std::vector<double> expected;
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) {
              double x = a[r * cols + c], y = form.data[r * form.row_stride + c * form.col_stride];
              if (swapped) std::swap(x, y);
              const double v = op == Binary::kAdd   ? x + y
                               : op == Binary::kSub ? x - y
                               : op == Binary::kMul ? x * y
                               : op == Binary::kDiv ? x / y
                               : op == Binary::kMax ? std::max(x, y)
                                                    : std::min(x, y);
              expected.push_back(reference::Apply(f, v));
            }
          EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = 1e-6, .relative = 1e-6}))
              << static_cast<int>(op) << " swapped " << swapped;
        }
  ForEveryVariant([&](const ElementwiseKernels& kernels) {
    for (const int a_step : {0, 1})
      for (const int b_step : {0, 1})
        for (const int64_t n : {1, 5, 31, 37}) {
          std::vector<float> out(n), expected;
          kernels.binary(Binary::kSub, {}, a.data(), a_step, b.data(), b_step, out.data(), n);
          for (int64_t i = 0; i < n; ++i) expected.push_back(a[i * a_step] - b[i * b_step]);
          EXPECT_EQ(out, expected);
        }
  });
}

TEST(Elementwise, MaxAndMinKeepNaN) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {nan, inf, -inf, 0, 1, -2};
  std::vector<float> a, b;
  for (const float x : special)
    for (const float y : special) a.push_back(x), b.push_back(y);
  ForEveryVariant([&](const ElementwiseKernels& kernels) {
    for (const Binary op : {Binary::kMax, Binary::kMin}) {
      std::vector<float> out(a.size());
      kernels.binary(op, {}, a.data(), 1, b.data(), 1, out.data(), static_cast<int64_t>(a.size()));
      for (size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(a[i]) || std::isnan(b[i]))
          EXPECT_TRUE(std::isnan(out[i])) << a[i] << " and " << b[i];
        else
          EXPECT_EQ(out[i], op == Binary::kMax ? std::max(a[i], b[i]) : std::min(a[i], b[i]));
      }
    }
  });
}

TEST(Elementwise, Transposes) {
  ThreadPool pool({.threads = 2});
  for (const int64_t rows : {1, 4, 35, 70})
    for (const int64_t cols : {1, 3, 64, 101}) {
      const auto in = RandomFloats(2 * rows * cols, 3);
      std::vector<float> out(in.size()), expected(in.size());
      for (int64_t p = 0; p < 2; ++p)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c)
            expected[(p * cols + c) * rows + r] = in[(p * rows + r) * cols + c];
      Transpose(in.data(), 2, rows, cols, out.data(), pool);
      EXPECT_EQ(out, expected) << rows << "x" << cols;
      ForEveryVariant([&](const ElementwiseKernels& kernels) {
        std::vector<float> one(rows * cols);
        kernels.transpose(in.data(), rows, cols, cols, one.data(), rows);
        EXPECT_TRUE(std::equal(one.begin(), one.end(), expected.begin()));
      });
    }
}

}  // namespace
}  // namespace celer
