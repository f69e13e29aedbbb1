// Row-wise functions of f32: softmax, layer norm, mean. Rows are dense, [rows, cols]; a row's result depends
// on that row alone, bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/network/rows/rows_kernels.h"
#include "kernels/shared/f16.h"

namespace celer {

// `out` may be `x`.
void Softmax(const float* x, float* out, int64_t rows, int64_t cols, ThreadPool& pool);
void SoftmaxRow(const float* x, float* out, int64_t n);  // on the calling thread
// The same down the columns of [n, cols], for each of `batch` matrices.
void SoftmaxColumns(const float* x, float* out, int64_t batch, int64_t n, int64_t cols, ThreadPool& pool);

struct LayerNormArgs {
  const float* x = nullptr;      // [rows, cols]
  const float* scale = nullptr;  // [cols], or none
  const float* shift = nullptr;  // [cols], or none
  float eps = 1e-5f;
  float* out = nullptr;  // may be x
  int64_t rows = 0, cols = 0;
  ThreadPool* pool = nullptr;  // splits the rows; none: all on the calling thread
};
void LayerNorm(const LayerNormArgs& args);

void LayerNormRow(const float* x, float eps, float* out,
                  int64_t n);  // without scale and shift; on the caller

// out[r] = factor * the sum of row r; and out[p, c] = factor * the sum of column c of matrix p of [n, cols].
void SumRows(const float* x, float factor, float* out, int64_t rows, int64_t cols, ThreadPool& pool);
void SumColumns(const float* x, float factor, float* out, int64_t batch, int64_t n, int64_t cols,
                ThreadPool& pool);
// out[r]: a global average pool, with rows = batch * channels.
void MeanOfRows(const float* x, float* out, int64_t rows, int64_t cols, ThreadPool& pool);
void MeanOfRows(const F16* x, F16* out, int64_t rows, int64_t cols, ThreadPool& pool);  // summed in f32

std::span<const Variant<const RowKernels*>> RowVariants();

}  // namespace celer
