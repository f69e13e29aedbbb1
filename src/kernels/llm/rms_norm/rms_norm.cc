#include "kernels/llm/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/shared/simd.h"

namespace celer {
namespace {

using S = Simd;
constexpr int kL = S::kLanes;

void NormRow(const RmsNormArgs& args, int64_t row) {
  const float* x = args.x + row * args.cols;
  ScaleByWeight(x, InverseRms(x, args.cols, args.eps), args.weight, args.cols, args.out + row * args.cols);
}

void AddNormedRow(const AddNormedArgs& args, int64_t row) {
  const float *x = args.x + row * args.cols, *weight = args.weight;
  float* const to = args.to + row * args.cols;
  const float scale = args.scale * InverseRms(x, args.cols, args.eps);
  const S::F scales = S::Set(scale);
  int64_t i = 0;
  for (; i + kL <= args.cols; i += kL)
    S::Store(to + i, S::Add(S::Load(to + i), S::Mul(S::Mul(S::Load(x + i), scales), S::Load(weight + i))));
  for (; i < args.cols; ++i) to[i] += x[i] * scale * weight[i];
}

// Rows that are worth a fork: about 5 us of work per piece.
template <class Row>
void ForRows(int64_t rows, int64_t cols, ThreadPool* pool, const Row& row) {
  constexpr int64_t kElements = 16384;
  const auto some = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r);
  };
  if (!pool || rows * cols <= kElements) return some(0, rows);
  pool->ParallelFor(rows, cols < kElements ? kElements / cols : 1, some);
}

}  // namespace

float InverseRms(const float* x, int64_t cols, float eps) {
  // Four accumulators: one would be bound by the latency of its own addition.
  S::F sum[4] = {S::Set(0), S::Set(0), S::Set(0), S::Set(0)};
  int64_t i = 0;
  for (; i + 4 * kL <= cols; i += 4 * kL)
    for (int j = 0; j < 4; ++j) {
      const S::F v = S::Load(x + i + j * kL);
      sum[j] = S::Fma(v, v, sum[j]);
    }
  for (; i < cols; i += kL) {
    const S::F v = LoadSome(x + i, cols - i < kL ? cols - i : kL);
    sum[0] = S::Fma(v, v, sum[0]);
  }
  const float squares = S::Sum(S::Add(S::Add(sum[0], sum[1]), S::Add(sum[2], sum[3])));
  return 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
}

void ScaleByWeight(const float* x, float scale, const float* weight, int64_t cols, float* out) {
  const S::F scales = S::Set(scale);
  int64_t i = 0;
  for (; i + kL <= cols; i += kL)
    S::Store(out + i, S::Mul(S::Mul(S::Load(x + i), scales), S::Load(weight + i)));
  for (; i < cols; ++i) out[i] = x[i] * scale * weight[i];
}

void RmsNorm(const RmsNormArgs& args) {
  ForRows(args.rows, args.cols, args.pool, [&](int64_t row) { NormRow(args, row); });
}

void AddNormed(const AddNormedArgs& args) {
  ForRows(args.rows, args.cols, args.pool, [&](int64_t row) { AddNormedRow(args, row); });
}

}  // namespace celer
