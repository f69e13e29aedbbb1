#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "formats/decode.h"
#include "formats/int8.h"
#include "kernels/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Weights {
  std::vector<std::byte> data;
  std::vector<float> scales;
  std::vector<Int4Group> params;
  WeightView view;
};

Weights MakeStored(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  Weights w;
  const int64_t row_bytes = *BytesFor(dtype, cols);
  w.data.resize(static_cast<size_t>(rows * row_bytes) + 1);
  // One byte off: tensors in files have no alignment.
  std::byte* start = w.data.data() + (dtype == DType::kF32 ? 0 : 1);
  const auto values = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r) EncodeRow(dtype, values.data() + r * cols, cols, start + r * row_bytes);
  w.view = {.dtype = dtype, .rows = rows, .cols = cols, .data = start, .row_bytes = row_bytes};
  return w;
}

Weights MakeInt8(int64_t rows, int64_t cols, int64_t group, uint32_t seed) {
  Weights w;
  w.data.resize(static_cast<size_t>(rows * cols));
  w.scales.resize(static_cast<size_t>(rows * cols / group));
  const auto values = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r)
    EncodeInt8Row({rows, cols, group}, values.data() + r * cols,
                  reinterpret_cast<int8_t*>(w.data.data()) + r * cols, w.scales.data() + r * cols / group);
  w.view = {.kind = WeightView::Kind::kInt8,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = cols,
            .scales = w.scales.data(),
            .group = group};
  return w;
}

Weights MakeInt4(int64_t rows, int64_t cols, int64_t group, uint32_t seed) {
  Weights w;
  w.data.resize(static_cast<size_t>(rows * cols / 2));
  w.params.resize(static_cast<size_t>(rows * cols / group));
  const auto values = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r)
    EncodeInt4Row({rows, cols, group}, values.data() + r * cols,
                  reinterpret_cast<uint8_t*>(w.data.data()) + r * cols / 2,
                  w.params.data() + r * cols / group);
  w.view = {.kind = WeightView::Kind::kInt4,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = cols / 2,
            .params = w.params.data(),
            .group = group};
  return w;
}

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 3});
  return pool;
}

// How far one dot product may be off when its activations become int8: half a step of each block of 32, times
// the weights.
double ActivationTolerance(const float* x, const float* w, int64_t cols) {
  double tolerance = 0;
  for (int64_t b = 0; b < cols; b += 32) {
    double largest = 0, weights = 0;
    for (int64_t i = b; i < std::min(b + 32, cols); ++i) {
      largest = std::max(largest, std::abs(double{x[i]}));
      weights += std::abs(double{w[i]});
    }
    tolerance += largest / 127 * 0.5001 * weights;
  }
  return tolerance;
}

bool QuantizesActivations(const Variant<MatmulFn>& variant, const WeightView& w) {
  if (std::string_view(variant.name) == "portable" || std::string_view(variant.name) == "reference")
    return false;
  return w.kind == WeightView::Kind::kStored &&
         (w.dtype == DType::kQ8_0 || w.dtype == DType::kQ4_0 || w.dtype == DType::kQ4_1);
}

void ExpectMatchesDouble(const Variant<MatmulFn>& variant, const WeightView& w, int64_t tokens, bool extras) {
  const auto x = RandomFloats(tokens * w.cols, 7);
  const auto bias = RandomFloats(w.rows, 8);
  const auto residual = RandomFloats(tokens * (w.rows + 3), 9);
  std::vector<float> out(static_cast<size_t>(tokens * (w.rows + 3)), -77.0f);
  variant.run({.x = x.data(),
               .tokens = tokens,
               .w = w,
               .bias = extras ? bias.data() : nullptr,
               .residual = extras ? residual.data() : nullptr,
               .out = out.data(),
               .out_stride = w.rows + 3,
               .pool = &Pool()});
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    DecodeWeightRow(w, r, row.data());
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<size_t>(t * (w.rows + 3) + r);
      double sum = extras ? double{bias[static_cast<size_t>(r)]} + residual[at] : 0,
             magnitude = std::abs(sum);
      for (int64_t c = 0; c < w.cols; ++c) {
        const double product = double{x[static_cast<size_t>(t * w.cols + c)]} * row[static_cast<size_t>(c)];
        sum += product;
        magnitude += std::abs(product);
      }
      double tolerance = testing::SumTolerance(w.cols, magnitude);
      if (QuantizesActivations(variant, w))
        tolerance += ActivationTolerance(x.data() + t * w.cols, row.data(), w.cols);
      ASSERT_NEAR(out[at], sum, tolerance) << "row " << r << " token " << t;
    }
  }
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = w.rows; r < w.rows + 3; ++r)
      ASSERT_EQ(out[static_cast<size_t>(t * (w.rows + 3) + r)], -77.0f) << "wrote beyond its rows";
}

TEST(Matmul, EveryVariantMatchesDouble) {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) {
      std::cout << variant.name << " cannot run here\n";
      continue;
    }
    SCOPED_TRACE(variant.name);
    struct Case {
      int64_t rows, cols, tokens;
    };
    for (const Case c : {Case{1, 32, 1}, {5, 96, 2}, {7, 32, 3}, {33, 160, 4}, {64, 256, 5}, {3, 64, 19}}) {
      SCOPED_TRACE(::testing::Message() << c.rows << "x" << c.cols << ", " << c.tokens << " tokens");
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0,
                                DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
        SCOPED_TRACE(Name(dtype));
        ExpectMatchesDouble(variant, MakeStored(dtype, c.rows, c.cols, 1).view, c.tokens, true);
      }
      ExpectMatchesDouble(variant, MakeInt8(c.rows, c.cols, c.cols, 2).view, c.tokens, false);
      ExpectMatchesDouble(variant, MakeInt8(c.rows, c.cols, 32, 2).view, c.tokens, true);
      ExpectMatchesDouble(variant, MakeInt4(c.rows, c.cols, 32, 3).view, c.tokens, true);
    }
    for (const DType dtype : {DType::kQ4_K, DType::kQ6_K})
      ExpectMatchesDouble(variant, MakeStored(dtype, 9, 512, 4).view, 6, false);
    for (const int64_t cols : {1, 3, 7, 577})
      ExpectMatchesDouble(variant, MakeStored(DType::kF32, 6, cols, 5).view, 3, true);
  }
}

TEST(Matmul, ATokensResultDoesNotDependOnItsCompany) {
  const auto x = RandomFloats(9 * 96, 12);
  std::vector<float> together(9 * 37), alone(37);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1})
    for (const auto& variant : MatmulVariants()) {
      if (!variant.RunsHere()) continue;
      const Weights w = MakeStored(dtype, 37, 96, 11);
      variant.run({.x = x.data(),
                   .tokens = 9,
                   .w = w.view,
                   .out = together.data(),
                   .out_stride = 37,
                   .pool = &Pool()});
      for (int64_t t = 0; t < 9; ++t) {
        variant.run({.x = x.data() + t * 96,
                     .tokens = 1,
                     .w = w.view,
                     .out = alone.data(),
                     .out_stride = 37,
                     .pool = &Pool()});
        EXPECT_EQ(0, std::memcmp(alone.data(), together.data() + t * 37, 37 * sizeof(float)))
            << variant.name << " token " << t;
      }
    }
}

TEST(WeightView, SliceAndBytes) {
  const Weights w = MakeInt4(10, 64, 32, 1);
  EXPECT_EQ(w.view.bytes(), 10 * (32 + 2 * 4));
  EXPECT_EQ(w.view.FormatName(), "int4-g32");
  std::vector<float> whole(64), part(64);
  DecodeWeightRow(w.view, 7, whole.data());
  DecodeWeightRow(w.view.Slice(5, 4), 2, part.data());
  EXPECT_EQ(whole, part);
}

}  // namespace
}  // namespace celer
