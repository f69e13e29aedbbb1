// The micro-kernels of an instruction set for integer products: a tile of a GEMM, and a row of a depthwise
// convolution. Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

#include "kernels/network/integer/requantize.h"

namespace celer {

// Rows of bytes times one panel of weights. Rows are `k` bytes long, a multiple of kIntegerStep; the weights
// of what stands behind the last real byte are zeros. Accumulators start with the bias.
struct IntegerTile {
  const uint8_t* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0;  // any number
  int64_t k = 0;
  bool x_signed = false;
  const int8_t* w = nullptr;  // one panel
  int64_t cols = 0;           // that exist: at most IntegerKernels::cols
  Requantize to = {};         // from the panel's first column on
  uint8_t* out = nullptr;     // bytes, or none:
  int32_t* sums = nullptr;    // the sums themselves
  int64_t out_stride = 0;     // elements of either
};
constexpr int64_t kIntegerStep = 16;

// One row of outputs of a depthwise convolution, channels [0, channels) of images with the channels last.
struct IntegerDepthwise {
  const uint8_t* const* in = nullptr;  // by row of the kernel; null: a row outside the image
  int64_t in_w = 0, channels = 0;
  bool x_signed = false;
  uint8_t pad = 0;  // what stands outside the image
  const int8_t* weights = nullptr;
  int64_t kernel_h = 0, kernel_w = 0, stride_w = 1, dilation_w = 1, pad_left = 0;
  Requantize to = {};
  uint8_t* out = nullptr;
  int64_t out_w = 0;
  uint8_t* scratch = nullptr;  // 64-byte aligned; see IntegerKernels::depth_rows
};

struct IntegerKernels {
  const char* name = nullptr;
  int byte_products = 64;  // that a core does per cycle, about
  int cols = 8;            // of a panel
  int step = 1;            // bytes of one column that stay together
  // Where an instruction wants signed, or unsigned, bytes, the kernel adds this to those that are otherwise;
  // the caller corrects the bias for it.
  int signed_offset = 0, unsigned_offset = 0;
  // As on the left, k bytes of weight: element (column, k) of a panel stands at
  // ((k / step) * cols + column) * step + k % step.
  void (*tile)(const IntegerTile& tile) = nullptr;
  // Depthwise weights are blocks of 16 channels, each [groups of kernel rows][kernel_w][16][rows of a group]:
  // the rows of a group, at most depth_rows, are summed by one instruction. A group of one column of the
  // image has 64 bytes in the scratch.
  int depth_rows = 1;
  void (*depthwise)(const IntegerDepthwise& row) = nullptr;
  void (*add)(const AddBytes& add) = nullptr;
};

constexpr int64_t kDepthBlock = 16;

static inline int64_t DepthwiseColumns(const IntegerDepthwise& d) {
  return (d.out_w - 1) * d.stride_w + (d.kernel_w - 1) * d.dilation_w + 1;
}

extern const IntegerKernels kIntegerPortable;
#if defined(__aarch64__)
extern const IntegerKernels kIntegerArmDotprod, kIntegerArmI8mm;
#elif defined(__x86_64__)
extern const IntegerKernels kIntegerX86Avx2, kIntegerX86AvxVnni, kIntegerX86Vnni;
#endif

}  // namespace celer
