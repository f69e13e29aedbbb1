// Functions of one and of two f32 tensors, element by element, and the transpose of a matrix.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/network/elementwise/elementwise_kernels.h"
#include "kernels/shared/f16.h"

namespace celer {

// out[i] = f(x[i]). `out` may be `x`.
void ApplyPointwise(const Pointwise& f, const float* x, float* out, int64_t n, ThreadPool& pool);

// The same for halves; computed in f32 and rounded once.
void ApplyPointwise(const Pointwise& f, const F16* x, F16* out, int64_t n, ThreadPool& pool);

// out[r, c] = f(a op b), out dense. Broadcasting by strides, in elements: 0 repeats. A column stride is 0
// or 1.
//   a scalar: both 0; a value per row (per channel of NCHW): {1, 0}; per column: {0, 1}.
struct BinaryOperand {
  const float* data = nullptr;
  int64_t row_stride = 0, col_stride = 1;
};
struct BinaryArgs {
  Binary op = Binary::kAdd;
  BinaryOperand a = {}, b = {};
  Pointwise f = {};
  int64_t rows = 0, cols = 0;
  float* out = nullptr;  // may be a or b where that is dense
  ThreadPool* pool = nullptr;
};
void ApplyBinary(const BinaryArgs& args);

// On the calling thread: one row, with steps of 0 or 1 as above, and one matrix with rows at any distance.
void UnaryRow(const Pointwise& f, const float* x, float* out, int64_t n);
void BinaryRow(Binary op, const Pointwise& f, const float* a, int64_t a_step, const float* b, int64_t b_step,
               float* out, int64_t n);
void BinaryRow(Binary op, const Pointwise& f, const F16* a, int64_t a_step, const F16* b, int64_t b_step,
               F16* out, int64_t n);
void TransposeBlock(const float* in, int64_t rows, int64_t cols, int64_t in_stride, float* out,
                    int64_t out_stride);

// out[p, c, r] = in[p, r, c] for p < batch, all dense. Not in place.
void Transpose(const float* in, int64_t batch, int64_t rows, int64_t cols, float* out, ThreadPool& pool);

std::span<const Variant<const ElementwiseKernels*>> ElementwiseVariants();

}  // namespace celer
