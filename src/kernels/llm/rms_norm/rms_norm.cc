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
  // Rows that are worth a fork: about 5 us of work per piece.
  constexpr int64_t kElements = 16384;
  if (!args.pool || args.rows * args.cols <= kElements) {
    for (int64_t r = 0; r < args.rows; ++r) NormRow(args, r);
    return;
  }
  const int64_t grain = args.cols < kElements ? kElements / args.cols : 1;
  args.pool->ParallelFor(args.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) NormRow(args, r);
  });
}

}  // namespace celer
