#include "kernels/network/rows/rows.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/network/elementwise/elementwise.h"

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

// Columns that are worked on together: a few dozen rows of them stay in the L1 cache.
constexpr int64_t kColumns = 256;

// Calls fn(matrix, first column, columns) for blocks of columns.
template <class Fn>
void ForColumns(int64_t batch, int64_t n, int64_t cols, ThreadPool& pool, const Fn& fn) {
  const int64_t blocks = (cols + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>((4 << 10) / std::max<int64_t>(n * std::min(cols, kColumns), 1), 1);
  pool.ParallelFor(batch * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kColumns;
      fn(i / blocks, first, std::min(kColumns, cols - first));
    }
  });
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

void SoftmaxRow(const float* x, float* out, int64_t n) {
  Chosen().softmax(x, out, n);
}

void SoftmaxColumns(const float* x, float* out, int64_t batch, int64_t n, int64_t cols, ThreadPool& pool) {
  if (n == 0) return;
  ForColumns(batch, n, cols, pool, [&](int64_t matrix, int64_t first, int64_t count) {
    const float* const from = x + matrix * n * cols + first;
    float* const to = out + matrix * n * cols + first;
    float most[kColumns], sum[kColumns];
    std::copy_n(from, count, most);
    for (int64_t i = 1; i < n; ++i) BinaryRow(Binary::kMax, {}, from + i * cols, 1, most, 1, most, count);
    std::fill_n(sum, count, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      float* const row = to + i * cols;
      BinaryRow(Binary::kSub, {.kind = Pointwise::Kind::kExp}, from + i * cols, 1, most, 1, row, count);
      BinaryRow(Binary::kAdd, {}, sum, 1, row, 1, sum, count);
    }
    for (int64_t c = 0; c < count; ++c) sum[c] = 1.0f / sum[c];
    for (int64_t i = 0; i < n; ++i)
      BinaryRow(Binary::kMul, {}, to + i * cols, 1, sum, 1, to + i * cols, count);
  });
}

void LayerNormRow(const float* x, float eps, float* out, int64_t n) {
  Chosen().layer_norm(x, nullptr, nullptr, eps, out, n);
}

void SumRows(const float* x, float factor, float* out, int64_t rows, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(rows, Grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) out[r] = factor * Chosen().sum(x + r * cols, cols);
  });
}

void SumColumns(const float* x, float factor, float* out, int64_t batch, int64_t n, int64_t cols,
                ThreadPool& pool) {
  ForColumns(batch, n, cols, pool, [&](int64_t matrix, int64_t first, int64_t count) {
    const float* const from = x + matrix * n * cols + first;
    float sum[kColumns] = {};
    for (int64_t i = 0; i < n; ++i) BinaryRow(Binary::kAdd, {}, sum, 1, from + i * cols, 1, sum, count);
    for (int64_t c = 0; c < count; ++c) out[matrix * cols + first + c] = factor * sum[c];
  });
}

void LayerNorm(const LayerNormArgs& args) {
  CELER_CHECK(args.x && args.out);
  const auto norm_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      Chosen().layer_norm(args.x + r * args.cols, args.scale, args.shift, args.eps, args.out + r * args.cols,
                          args.cols);
  };
  if (!args.pool) return norm_rows(0, args.rows);
  args.pool->ParallelFor(args.rows, Grain(args.cols), norm_rows);
}

void MeanOfRows(const float* x, float* out, int64_t rows, int64_t cols, ThreadPool& pool) {
  SumRows(x, 1.0f / static_cast<float>(cols), out, rows, cols, pool);
}

void MeanOfRows(const F16* x, F16* out, int64_t rows, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(rows, Grain(cols), [&](int64_t begin, int64_t end) {
    constexpr int64_t kPiece = 1024;
    alignas(64) float piece[kPiece];
    for (int64_t r = begin; r < end; ++r) {
      float sum = 0;
      for (int64_t i = 0; i < cols; i += kPiece) {
        const int64_t count = std::min(kPiece, cols - i);
        ToFloats(x + r * cols + i, piece, count);
        sum += Chosen().sum(piece, count);
      }
      sum /= static_cast<float>(cols);
      ToF16(&sum, out + r, 1);
    }
  });
}

}  // namespace celer
