// Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

enum class PoolKind : uint8_t { kMax, kAverage };

// One plane on the calling thread.
struct PoolPlane {
  PoolKind kind = PoolKind::kMax;
  const float* in = nullptr;  // [in_h, in_w]
  int64_t in_h = 0, in_w = 0;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  // What an average divides by, of rows and of columns: [out_h] and [out_w], reciprocals.
  const float* row_share = nullptr;
  const float* col_share = nullptr;
  float* out = nullptr;  // [out_h, out_w]
  int64_t out_h = 0, out_w = 0;
  float* scratch = nullptr;
};

struct PoolKernels {
  void (*plane)(const PoolPlane& p) = nullptr;
};

extern const PoolKernels kPoolReference, kPoolPortable;
#if defined(__x86_64__)
extern const PoolKernels kPoolX86Avx2, kPoolX86Avx512;
#endif

}  // namespace celer
