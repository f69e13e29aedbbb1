// Integer pools, lookup tables and products, elementwise or along the channels of NHWC images.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/network/integer/requantize.h"

namespace celer {

struct BytePool {
  const uint8_t* x = nullptr;
  bool x_signed = false;
  int64_t batch = 1, in_h = 1, in_w = 1, channels = 1;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0, out_h = 1, out_w = 1;
  uint8_t* out = nullptr;
  ThreadPool* pool = nullptr;
};

// The largest byte of each window, as far as it lies in the image.
void MaxPoolBytes(const BytePool& p);

// zero + (sum of the window's bytes less x_zero each) * factor. Padding is a real zero.
struct AverageBytes {
  int32_t x_zero = 0;
  Multiplier factor = {};
  ByteRange range = {};
};
void AveragePoolBytes(const BytePool& p, const AverageBytes& average);

// out[i] = table[x[i]].
void LookUpBytes(const uint8_t* x, const uint8_t* table, uint8_t* out, int64_t n, ThreadPool& pool);

// zero + (a - a_zero) * (b - b_zero) * factor. A step of 0 repeats an element.
struct MulBytes {
  const uint8_t *a = nullptr, *b = nullptr;
  int64_t a_step = 1, b_step = 1;
  bool a_signed = false, b_signed = false;
  int32_t a_zero = 0, b_zero = 0;
  Multiplier factor = {};
  ByteRange range = {};
  uint8_t* out = nullptr;
  int64_t n = 0;
};
void MultiplyBytes(const MulBytes& m);

}  // namespace celer
