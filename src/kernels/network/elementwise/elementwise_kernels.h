// Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

#include "kernels/shared/gemm/epilogue.h"

namespace celer {

enum class Binary : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin };

// Rows on the calling thread. A step is 1, or 0 for a value that is the same along the row.
struct ElementwiseKernels {
  void (*unary)(const Pointwise& f, const float* x, float* out, int64_t n) = nullptr;
  void (*binary)(Binary op, const Pointwise& f, const float* a, int a_step, const float* b, int b_step,
                 float* out, int64_t n) = nullptr;
  // out[c, r] = in[r, c]
  void (*transpose)(const float* in, int64_t rows, int64_t cols, int64_t in_stride, float* out,
                    int64_t out_stride) = nullptr;
};

extern const ElementwiseKernels kElementwiseReference, kElementwisePortable;
#if defined(__x86_64__)
extern const ElementwiseKernels kElementwiseX86Avx2, kElementwiseX86Avx512;
#endif

}  // namespace celer
