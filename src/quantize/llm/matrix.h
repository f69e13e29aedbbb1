// The few operations on dense f32 matrices that calibration needs, on top of the gemm kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer {

// out = a b (+ add), with the workspace found here.
void Product(GemmArgs args, ThreadPool& pool);

// A weight [rows, cols] packed for x w^T.
class PackedWeight {
 public:
  PackedWeight(const float* w, int64_t rows, int64_t cols, ThreadPool& pool);
  // out [tokens, rows] = x [tokens, cols] w^T (+ bias[rows]) (+ add [tokens, rows]); add may be out.
  void Multiply(const float* x, int64_t tokens, const float* bias, const float* add, float* out) const;

 private:
  int64_t rows_, cols_;
  ThreadPool* pool_;
  AlignedVector<float> packed_;
};

// The Gram matrix of a matrix' input, the sum of x^T x over all rows seen, and the sum of |x|: what GPTQ and
// AWQ know of it.
class InputStatistics {
 public:
  void Add(const float* x, int64_t tokens, int64_t cols, ThreadPool& pool);

  // As if each column of all inputs had been divided by its number.
  void Divide(std::span<const float> by);

  // From sums that were made elsewhere: gram [cols, cols], of which the upper half counts.
  static InputStatistics From(int64_t tokens, AlignedVector<float> gram, std::vector<double> magnitudes);

  int64_t cols() const { return cols_; }
  int64_t tokens() const { return tokens_; }
  const AlignedVector<float>& gram() const { return gram_; }
  // [cols, cols], both halves; per token.
  AlignedVector<float> Hessian() const;
  std::vector<float> MeanSquares() const;
  std::vector<float> MeanMagnitudes() const;

 private:
  int64_t cols_ = 0, tokens_ = 0;
  AlignedVector<float> gram_;  // the upper half, in strips
  std::vector<double> magnitudes_;
};

// The inverse Cholesky factor: the upper triangular U with U^T U = H^-1, of a symmetric positive definite H
// [n, n]. False if it is not positive definite.
bool InverseCholesky(const float* h, int64_t n, float* u, ThreadPool& pool);

}  // namespace celer
