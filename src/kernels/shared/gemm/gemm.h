// GEMM, out = f(a b + bias + add), for f32 or f16 matrices: the products of networks, and by im2col their
// convolutions.
//
// Constant operands are packed once (GemmPackA, GemmPackB); others are packed block by block as the product
// runs, into a workspace that the caller gives. Nothing is allocated while running. `out` is deterministic:
// it does not depend on the number of threads, bit for bit.
//
// As a convolution: a = weights [out_channels, channels * kernel_h * kernel_w], packed; b = im2col of the
// input; out = [out_channels, out_h * out_w]: rows are channels, so bias is row_bias.
// As a linear layer: a = activations [tokens, in]; b = weights, packed; bias is col_bias.
//
// Everything is written for a type T of numbers, float or F16, which the arguments tell. "Floats" in names of
// sizes are so many of these numbers. Products of f16 are accumulated in f16, in blocks of k that are short
// enough for that (GemmKernels::k_block).
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/shared/gemm/gemm_kernels.h"

namespace celer {

// One of: `data` with its strides, one of which is usually 1 (transposed: exchange them); `packed` by
// GemmPackA or GemmPackB; `gather` together with `data`, the image, for b alone.
template <class T>
struct BasicGemmOperand {
  const T* data = nullptr;
  int64_t row_stride = 0, col_stride = 1;  // elements
  const T* packed = nullptr;
  const Im2col* gather = nullptr;
  int64_t batch_stride = 0;  // numbers from one product's operand to the next one's; 0: all share it

  static BasicGemmOperand Rows(const T* data, int64_t stride, int64_t batch_stride = 0) {
    return {.data = data, .row_stride = stride, .col_stride = 1, .batch_stride = batch_stride};
  }
  static BasicGemmOperand Transposed(const T* data, int64_t stride, int64_t batch_stride = 0) {
    return {.data = data, .row_stride = 1, .col_stride = stride, .batch_stride = batch_stride};
  }
  static BasicGemmOperand Packed(const T* packed, int64_t batch_stride = 0) {
    return {.packed = packed, .batch_stride = batch_stride};
  }
  static BasicGemmOperand Gathered(const T* image, const Im2col& gather, int64_t batch_stride = 0) {
    return {.data = image, .gather = &gather, .batch_stride = batch_stride};
  }
};
using GemmOperand = BasicGemmOperand<float>;

template <class T>
struct BasicGemmArgs {
  int64_t m = 0, n = 0, k = 0;
  BasicGemmOperand<T> a = {};  // [m, k]
  BasicGemmOperand<T> b = {};  // [k, n]
  T* out = nullptr;
  int64_t out_stride = 0;
  BasicEpilogue<T> epilogue = {};  // the same f for all products of a batch
  // Several products of one shape: heads of an attention, groups of a convolution.
  int64_t batch = 1;
  int64_t out_batch_stride = 0, add_batch_stride = 0;
  int64_t row_bias_batch_stride = 0, col_bias_batch_stride = 0;
  T* workspace = nullptr;  // GemmWorkspaceFloats() of them, 64-byte aligned
  ThreadPool* pool = nullptr;
};
using GemmArgs = BasicGemmArgs<float>;

template <class T>
using BasicGemmVariant = Variant<const BasicGemmKernels<T>*>;
using GemmVariant = BasicGemmVariant<float>;
std::span<const GemmVariant> GemmVariants();
std::span<const BasicGemmVariant<F16>> GemmF16Variants();

template <class T>
const BasicGemmKernels<T>& ChosenGemmOf();
template <>
const BasicGemmKernels<float>& ChosenGemmOf<float>();
template <>
const BasicGemmKernels<F16>& ChosenGemmOf<F16>();
inline const GemmKernels& ChosenGemm() {
  return ChosenGemmOf<float>();
}

// What is packed for one variant's kernels can be used with these alone. `out` is 64-byte aligned; parts of a
// batch are one such size apart.
template <class T = float>
int64_t GemmPackedAFloats(int64_t m, int64_t k, const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());
template <class T = float>
int64_t GemmPackedBFloats(int64_t k, int64_t n, const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());
template <class T>
void GemmPackA(const BasicGemmOperand<T>& a, int64_t m, int64_t k, T* out,
               const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());
template <class T>
void GemmPackB(const BasicGemmOperand<T>& b, int64_t k, int64_t n, T* out,
               const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());

// For any number of products of this shape, with this many threads; `args.pool` and pointers are not looked
// at, but which of the operands are packed.
template <class T>
int64_t GemmWorkspaceFloats(const BasicGemmArgs<T>& args, int threads,
                            const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());

template <class T>
void Gemm(const BasicGemmArgs<T>& args, const BasicGemmKernels<T>& kernels = ChosenGemmOf<T>());

}  // namespace celer
