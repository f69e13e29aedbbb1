// The micro-kernels of an instruction set for GEMM of f32 or f16 matrices: packing, and the product of packed
// blocks. Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

#include "kernels/shared/f16.h"
#include "kernels/shared/gemm/epilogue.h"

namespace celer {

// The im2col matrix of a convolution, [channels * kernel_h * kernel_w, out_h * out_w], which is never
// materialized: its element is the input's under one tap for one output pixel, and 0 outside the input.
struct Im2col {
  int64_t channels = 0, in_h = 0, in_w = 0;  // one image: [channels, in_h, in_w], dense
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;  // what is needed at the bottom and on the right follows from the output
  int64_t out_h = 0, out_w = 0;

  int64_t rows() const { return channels * kernel_h * kernel_w; }
  int64_t cols() const { return out_h * out_w; }
};

// One block: out[m, n] (+)= a[m, k] b[k, n]. `a` is panels of mr rows, each [k, mr]; `b` panels of nr
// columns, each [k, nr].
template <class T>
struct BasicGemmBlock {
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t a_panel = 0;  // numbers from one panel to the next: mr times all of k, of which this may be a part
  const T* b = nullptr;
  int64_t b_panel = 0;
  T* out = nullptr;
  int64_t out_stride = 0;
  bool accumulate = false;         // add to what `out` holds
  bool finish = true;              // the last part of k: the epilogue is applied
  bool a_stays = false;            // in the cache while panels of b go by; else the other way round
  BasicEpilogue<T> epilogue = {};  // its pointers begin with this block
};
using GemmBlock = BasicGemmBlock<float>;

// Lanes are rows of the left matrix or columns of the right one. A panel of w lanes is [k, w]; the last one
// is filled up with zeros.
template <class T>
struct BasicPackSource {
  const T* data = nullptr;
  int64_t lane_stride = 0, k_stride = 0;  // elements
};
using PackSource = BasicPackSource<float>;

template <class T>
struct BasicGemmKernels {
  const char* name = nullptr;
  int mr = 1, nr = 1;
  int64_t k_block = INT64_MAX;  // longest part of k that one block takes
  void (*block)(const BasicGemmBlock<T>& block) = nullptr;
  void (*pack_a)(const BasicPackSource<T>& from, int64_t lanes, int64_t k, T* out, int64_t panel) = nullptr;
  void (*pack_b)(const BasicPackSource<T>& from, int64_t lanes, int64_t k, T* out, int64_t panel) = nullptr;
  // Rows [k_begin, k_end), columns [n_begin, n_end); `in_end` is the end of the memory that may be read.
  void (*pack_im2col)(const Im2col& g, const T* in, const T* in_end, int64_t k_begin, int64_t k_end,
                      int64_t n_begin, int64_t n_end, T* out, int64_t panel) = nullptr;
};
using GemmKernels = BasicGemmKernels<float>;

// Behind packed panels there is room for so many numbers: a kernel may load what comes after the last step.
constexpr int64_t kPackSlack = 64;

extern const GemmKernels kGemmReference, kGemmPortable;
extern const BasicGemmKernels<F16> kGemmReferenceF16;
#if defined(__aarch64__)
extern const BasicGemmKernels<F16> kGemmArmFp16;
extern const GemmKernels kGemmArmNeon;
#elif defined(__x86_64__)
extern const GemmKernels kGemmX86Avx2, kGemmX86Avx512;
#endif

}  // namespace celer
