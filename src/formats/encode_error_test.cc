// How much the encoders lose, beside llama.cpp's on the same kind of weights.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/decode.h"

namespace celer {
namespace {

constexpr int64_t kMeasuredRows = 64, kMeasuredCols = 1536;

struct Case {
  DType dtype;
  double plain;  // squared error of llama.cpp's quantizer, relative to the weights, without importance
};

// Of normally distributed weights, ggml_quantize_chunk of llama.cpp, November 2026.
constexpr Case kCases[] = {{DType::kQ2_K, 8.79e-2},  {DType::kQ3_K, 2.28e-2}, {DType::kQ4_K, 5.07e-3},
                           {DType::kQ5_K, 1.30e-3},  {DType::kQ6_K, 3.14e-4}, {DType::kIq4Nl, 5.83e-3},
                           {DType::kIq4Xs, 5.86e-3}, {DType::kMxfp4, 1.30e-2}};

double ErrorOf(DType dtype, const std::vector<float>& x, const float* importance, const float* counted) {
  std::vector<std::byte> row(*BytesFor(dtype, kMeasuredCols));
  std::vector<float> decoded(kMeasuredCols);
  double error = 0, power = 0;
  for (int64_t r = 0; r < kMeasuredRows; ++r) {
    EncodeRow(dtype, x.data() + r * kMeasuredCols, kMeasuredCols, row.data(), importance);
    DecodeRow(dtype, row.data(), kMeasuredCols, decoded.data());
    for (int64_t c = 0; c < kMeasuredCols; ++c) {
      const double value = x[r * kMeasuredCols + c];
      const double weight = counted ? counted[c] : 1, miss = value - decoded[c];
      error += weight * miss * miss;
      power += weight * value * value;
    }
  }
  return error / power;
}

TEST(EncodeError, IsNoLargerThanLlamaCpps) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> x(kMeasuredRows * kMeasuredCols), importance(kMeasuredCols);
  for (float& value : x) value = normal(random);
  for (float& value : importance) value = std::exp(75.0f * normal(random));
  for (const Case& c : kCases) {
    EXPECT_LT(ErrorOf(c.dtype, x, nullptr, nullptr), c.plain) << Name(c.dtype);
    // Importance lowers the error that it weighs; MXFP4 has only the choice of a power of two.
    EXPECT_LT(ErrorOf(c.dtype, x, importance.data(), importance.data()),
              (c.dtype == DType::kMxfp4 ? 0.98 : 0.95) * ErrorOf(c.dtype, x, nullptr, importance.data()))
        << Name(c.dtype);
  }
}

// An importance of zeros, and one of huge and tiny numbers, still give finite values.
TEST(EncodeError, OddImportanceDoesNoHarm) {
  std::vector<float> x(256), zeros(256, 0.0f), wild(256), decoded(256);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i));
    wild[i] = i % 2 ? 1e20f : 1e-20f;
  }
  for (const DType dtype : BlockTypes())
    for (const auto& importance : {zeros, wild}) {
      std::vector<std::byte> row(*BytesFor(dtype, 256));
      EncodeRow(dtype, x.data(), 256, row.data(), importance.data());
      DecodeRow(dtype, row.data(), 256, decoded.data());
      for (size_t i = 0; i < x.size(); ++i) EXPECT_LT(std::fabs(decoded[i] - x[i]), 1.0f) << Name(dtype);
    }
}

}  // namespace
}  // namespace celer
