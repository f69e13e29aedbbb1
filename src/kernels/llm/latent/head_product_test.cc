#include "kernels/llm/latent/head_product.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/decode.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

struct Shape {
  int64_t heads, rows, cols, tokens;
};

class Fixture {
 public:
  Fixture(const Shape& shape, DType dtype)
      : shape_(shape), x_(testing::RandomFloats(shape.tokens * shape.heads * Stride(shape.cols), 1)) {
    const int64_t rows = shape.heads * shape.rows;
    const auto row_bytes = *BytesFor(dtype, shape.cols);
    bytes_.resize(static_cast<size_t>(rows * row_bytes));
    const auto weights = testing::RandomFloats(rows * shape.cols, 2);
    for (int64_t r = 0; r < rows; ++r)
      EncodeRow(dtype, weights.data() + r * shape.cols, shape.cols, bytes_.data() + r * row_bytes);
    view_ = {.dtype = dtype, .rows = rows, .cols = shape.cols, .data = bytes_.data(), .row_bytes = row_bytes};
  }

  // Of tokens [begin, end).
  std::vector<float> Run(HeadTileFn run, int64_t begin, int64_t end) const {
    ThreadPool pool({.threads = 3});
    const int64_t x_head = Stride(shape_.cols), out_head = Stride(shape_.rows);
    std::vector<float> out(static_cast<size_t>((end - begin) * shape_.heads * out_head), kUntouched);
    HeadProduct({.w = view_,
                 .heads = shape_.heads,
                 .tokens = end - begin,
                 .x = x_.data() + begin * shape_.heads * x_head,
                 .x_token = shape_.heads * x_head,
                 .x_head = x_head,
                 .out = out.data(),
                 .out_token = shape_.heads * out_head,
                 .out_head = out_head,
                 .pool = &pool},
                run);
    return out;
  }

  void ExpectRight(const std::vector<float>& out, const char* variant) const {
    const int64_t out_head = Stride(shape_.rows), x_head = Stride(shape_.cols);
    std::vector<float> w(static_cast<size_t>(shape_.cols));
    for (int64_t h = 0; h < shape_.heads; ++h)
      for (int64_t r = 0; r < out_head; ++r)
        for (int64_t t = 0; t < shape_.tokens; ++t) {
          const float got = out[static_cast<size_t>((t * shape_.heads + h) * out_head + r)];
          if (r >= shape_.rows) {
            ASSERT_EQ(got, kUntouched) << variant;
            continue;
          }
          DecodeWeightRow(view_, h * shape_.rows + r, w.data());
          const float* x = x_.data() + (t * shape_.heads + h) * x_head;
          double sum = 0, magnitudes = 0;
          for (int64_t d = 0; d < shape_.cols; ++d) {
            sum += double{w[static_cast<size_t>(d)]} * x[d];
            magnitudes += std::abs(double{w[static_cast<size_t>(d)]} * x[d]);
          }
          ASSERT_NEAR(got, sum, testing::SumTolerance(shape_.cols, magnitudes))
              << variant << ", head " << h << ", row " << r << ", token " << t;
        }
  }

 private:
  static constexpr float kUntouched = 12345;
  // Heads do not follow each other.
  static int64_t Stride(int64_t n) { return n + 3; }

  Shape shape_;
  std::vector<float> x_;
  std::vector<std::byte> bytes_;
  WeightView view_;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1}, {3, 5, 7, 2}, {2, 130, 33, 5}, {4, 16, 64, 9}, {2, 9, 24, 1}};

TEST(HeadProduct, EveryVariantMatchesDouble) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
    for (const Shape& shape : kShapes) {
      const Fixture fixture(shape, dtype);
      for (const auto& variant : HeadTileVariants())
        if (variant.RunsHere()) fixture.ExpectRight(fixture.Run(variant.run, 0, shape.tokens), variant.name);
    }
}

TEST(HeadProduct, ATokenDoesNotDependOnTheOthers) {
  for (const Shape& shape : kShapes) {
    const Fixture fixture(shape, DType::kBf16);
    for (const auto& variant : HeadTileVariants()) {
      if (!variant.RunsHere()) continue;
      const std::vector<float> together = fixture.Run(variant.run, 0, shape.tokens);
      std::vector<float> alone;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        const std::vector<float> one = fixture.Run(variant.run, t, t + 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      EXPECT_EQ(alone, together) << variant.name;
    }
  }
}

}  // namespace
}  // namespace celer
