// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"

namespace celer {

struct RmsNormArgs {
  const float* x = nullptr;       // [rows, cols]
  const float* weight = nullptr;  // [cols]
  float eps = 1e-5f;
  int64_t rows = 0;
  int64_t cols = 0;
  float* out = nullptr;        // [rows, cols]; may be x
  ThreadPool* pool = nullptr;  // splits the rows; none: all on the calling thread
};

void RmsNorm(const RmsNormArgs& args);

// to += scale * norm(x) row by row: how a branch of a decoder layer whose output is normed joins the residual.
struct AddNormedArgs {
  const float* x = nullptr;       // [rows, cols]
  const float* weight = nullptr;  // [cols]
  float eps = 1e-5f;
  float scale = 1;
  int64_t rows = 0;
  int64_t cols = 0;
  float* to = nullptr;         // [rows, cols]
  ThreadPool* pool = nullptr;  // as above
};

void AddNormed(const AddNormedArgs& args);

// 1 / sqrt(mean(x^2) + eps): for callers that fold the norm into what follows.
float InverseRms(const float* x, int64_t cols, float eps);
// out = x * scale * weight; out may be x.
void ScaleByWeight(const float* x, float scale, const float* weight, int64_t cols, float* out);

}  // namespace celer
