// out = f(a b + bias + add) for f32 matrices: the products of networks, and by Im2col their convolutions.
//
// Constant operands are packed once (GemmPackA, GemmPackB); others are packed block by block as the product
// runs, into a workspace that the caller gives. Nothing is allocated while running. Elements of `out` do not
// depend on the number of threads, bit for bit.
//
// As a convolution: a = weights [out_channels, channels * kernel_h * kernel_w], packed; b = the gathered
// input; out = [out_channels, out_h * out_w]: rows are channels, so bias is row_bias.
// As a linear layer: a = activations [tokens, in]; b = weights, packed; bias is col_bias.
#pragma once

#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "core/variant.h"
#include "kernels/gemm/gemm_kernels.h"

namespace celer {

// One of: `data` with its strides, one of which is usually 1 (transposed: exchange them); `packed` by
// GemmPackA or GemmPackB; `gather` together with `data`, the image, for b alone.
struct GemmOperand {
  const float* data = nullptr;
  int64_t row_stride = 0, col_stride = 1;  // elements
  const float* packed = nullptr;
  const Im2col* gather = nullptr;
  int64_t batch_stride = 0;  // floats from one product's operand to the next one's; 0: all share it

  static GemmOperand Rows(const float* data, int64_t stride, int64_t batch_stride = 0) {
    return {.data = data, .row_stride = stride, .col_stride = 1, .batch_stride = batch_stride};
  }
  static GemmOperand Transposed(const float* data, int64_t stride, int64_t batch_stride = 0) {
    return {.data = data, .row_stride = 1, .col_stride = stride, .batch_stride = batch_stride};
  }
  static GemmOperand Packed(const float* packed, int64_t batch_stride = 0) {
    return {.packed = packed, .batch_stride = batch_stride};
  }
  static GemmOperand Gathered(const float* image, const Im2col& gather, int64_t batch_stride = 0) {
    return {.data = image, .gather = &gather, .batch_stride = batch_stride};
  }
};

struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  GemmOperand a = {};  // [m, k]
  GemmOperand b = {};  // [k, n]
  float* out = nullptr;
  int64_t out_stride = 0;
  Epilogue epilogue = {};  // the same f for all products of a batch
  // Several products of one shape: heads of an attention, groups of a convolution.
  int64_t batch = 1;
  int64_t out_batch_stride = 0, add_batch_stride = 0;
  int64_t row_bias_batch_stride = 0, col_bias_batch_stride = 0;
  float* workspace = nullptr;  // GemmWorkspaceFloats() of them, 64-byte aligned
  ThreadPool* pool = nullptr;
};

using GemmVariant = Variant<const GemmKernels*>;
std::span<const GemmVariant> GemmVariants();
const GemmKernels& ChosenGemm();

// What is packed for one variant's kernels can be used with these alone. `out` is 64-byte aligned; parts of a
// batch are one such size apart.
int64_t GemmPackedAFloats(int64_t m, int64_t k, const GemmKernels& kernels = ChosenGemm());
int64_t GemmPackedBFloats(int64_t k, int64_t n, const GemmKernels& kernels = ChosenGemm());
void GemmPackA(const GemmOperand& a, int64_t m, int64_t k, float* out,
               const GemmKernels& kernels = ChosenGemm());
void GemmPackB(const GemmOperand& b, int64_t k, int64_t n, float* out,
               const GemmKernels& kernels = ChosenGemm());

// For any number of products of this shape, with this many threads; `args.pool` and pointers are not looked
// at, but which of the operands are packed.
int64_t GemmWorkspaceFloats(const GemmArgs& args, int threads, const GemmKernels& kernels = ChosenGemm());

void Gemm(const GemmArgs& args, const GemmKernels& kernels = ChosenGemm());

}  // namespace celer
