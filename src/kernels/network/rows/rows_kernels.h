// Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

// One row on the calling thread. `out` may be `x`.
struct RowKernels {
  void (*softmax)(const float* x, float* out, int64_t n) = nullptr;
  // (x - mean) / sqrt(variance + eps) * scale + shift; scale and shift are [n], or none.
  void (*layer_norm)(const float* x, const float* scale, const float* shift, float eps, float* out,
                     int64_t n) = nullptr;
  float (*sum)(const float* x, int64_t n) = nullptr;
};

extern const RowKernels kRowsReference, kRowsPortable;
#if defined(__x86_64__)
extern const RowKernels kRowsX86Avx2, kRowsX86Avx512;
#endif

}  // namespace celer
