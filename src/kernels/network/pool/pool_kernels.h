// Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

#include "kernels/shared/f16.h"

namespace celer {

enum class PoolKind : uint8_t { kMax, kAverage };

// One plane on the calling thread.
template <class T>
struct BasicPoolPlane {
  PoolKind kind = PoolKind::kMax;
  const T* in = nullptr;  // [in_h, in_w]
  int64_t in_h = 0, in_w = 0;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  // What an average divides by, of rows and of columns: [out_h] and [out_w], reciprocals.
  const float* row_share = nullptr;
  const float* col_share = nullptr;
  T* out = nullptr;  // [out_h, out_w]
  int64_t out_h = 0, out_w = 0;
  T* scratch = nullptr;
};
using PoolPlane = BasicPoolPlane<float>;

template <class T>
struct BasicPoolKernels {
  void (*plane)(const BasicPoolPlane<T>& p) = nullptr;
};
using PoolKernels = BasicPoolKernels<float>;

extern const PoolKernels kPoolReference, kPoolPortable;
extern const BasicPoolKernels<F16> kPoolReferenceF16;
#if defined(__aarch64__)
extern const BasicPoolKernels<F16> kPoolArmFp16;
#elif defined(__x86_64__)
extern const PoolKernels kPoolX86Avx2, kPoolX86Avx512;
#endif

}  // namespace celer
