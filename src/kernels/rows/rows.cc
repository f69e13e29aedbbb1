#include "kernels/rows/rows.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace celer {
namespace {

constexpr Variant<const RowKernels*> kRows[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, &kRowsX86Avx512},
    {"x86_avx2", Isa::kAvx2, &kRowsX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kRowsPortable},
    {"reference", Isa::kBaseline, &kRowsReference},
};

const RowKernels& Chosen() {
  static const RowKernels& chosen = *Pick<const RowKernels*>("rows", kRows)->run;
  return chosen;
}

int64_t Grain(int64_t cols) {
  return std::max<int64_t>((4 << 10) / std::max<int64_t>(cols, 1), 1);
}

void ReferenceSoftmax(const float* x, float* out, int64_t n) {
  if (n == 0) return;
  const float most = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<float>(std::exp(static_cast<double>(x[i]) - most) / sum);
}

void ReferenceLayerNorm(const float* x, const float* scale, const float* shift, float eps, float* out,
                        int64_t n) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) mean += x[i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<float>((x[i] - mean) * factor * (scale ? scale[i] : 1) + (shift ? shift[i] : 0));
}

float ReferenceSum(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return static_cast<float>(sum);
}

}  // namespace

const RowKernels kRowsReference = {
    .softmax = ReferenceSoftmax, .layer_norm = ReferenceLayerNorm, .sum = ReferenceSum};

std::span<const Variant<const RowKernels*>> RowVariants() {
  return kRows;
}

void Softmax(const float* x, float* out, int64_t rows, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(rows, Grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) Chosen().softmax(x + r * cols, out + r * cols, cols);
  });
}

void LayerNorm(const LayerNormArgs& args) {
  CELER_CHECK(args.pool && args.x && args.out);
  args.pool->ParallelFor(args.rows, Grain(args.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      Chosen().layer_norm(args.x + r * args.cols, args.scale, args.shift, args.eps, args.out + r * args.cols,
                          args.cols);
  });
}

void MeanOfRows(const float* x, float* out, int64_t rows, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(rows, Grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      out[r] = Chosen().sum(x + r * cols, cols) / static_cast<float>(cols);
  });
}

}  // namespace celer
