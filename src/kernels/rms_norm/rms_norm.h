// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
#pragma once

#include <cstdint>

namespace celer {

struct RmsNormArgs {
  const float* x = nullptr;       // [rows, cols]
  const float* weight = nullptr;  // [cols]
  float eps = 1e-5f;
  int64_t rows = 0;
  int64_t cols = 0;
  float* out = nullptr;  // [rows, cols]; may be x
};

void RmsNorm(const RmsNormArgs& args);

}  // namespace celer
