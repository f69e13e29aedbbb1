// The transposed convolution of f32 images: a GEMM makes what every pixel gives to every tap; then col2im
// adds the taps where they belong.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/shared/gemm/epilogue.h"

namespace celer {

struct TransposedConvShape {
  int64_t batch = 1, channels = 0, in_h = 0, in_w = 0;
  int64_t out_channels = 0, groups = 1;  // weights: [channels, out_channels / groups, kernel_h, kernel_w]
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;  // what is cut off; the rest follows from the output
  int64_t out_h = 0, out_w = 0;
};

struct TransposedConvArgs {
  const float* in = nullptr;       // [batch, channels, in_h, in_w]
  const float* weights = nullptr;  // from PackTransposedConv
  const float* bias = nullptr;     // [out_channels], or none
  Pointwise f = {};
  float* out = nullptr;        // [batch, out_channels, out_h, out_w]
  float* workspace = nullptr;  // TransposedConvWorkspaceFloats() of them, 64-byte aligned
  ThreadPool* pool = nullptr;
};

int64_t TransposedConvPackedFloats(const TransposedConvShape& shape);
void PackTransposedConv(const TransposedConvShape& shape, const float* weights, float* packed);
int64_t TransposedConvWorkspaceFloats(const TransposedConvShape& shape, int threads);
void TransposedConv(const TransposedConvShape& shape, const TransposedConvArgs& args);

}  // namespace celer
