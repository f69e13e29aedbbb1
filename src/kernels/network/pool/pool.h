// Max and average pooling of f32 or f16 images, NCHW. Global average pools: MeanOfRows (rows.h).
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/network/pool/pool_kernels.h"

namespace celer {

struct PoolShape {
  PoolKind kind = PoolKind::kMax;
  int64_t planes = 0, in_h = 0, in_w = 0;  // planes: batch * channels
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  int64_t out_h = 0, out_w = 0;  // given, since they depend on how the model rounds; windows may reach out
  bool count_border = false;     // an average's divisor counts the padding, but never what is beyond it
};

template <class T>
struct BasicPoolArgs {
  const T* in = nullptr;       // [planes, in_h, in_w]
  T* out = nullptr;            // [planes, out_h, out_w]
  float* workspace = nullptr;  // PoolWorkspaceFloats() for the pool's threads, 64-byte aligned
  ThreadPool* pool = nullptr;
};
using PoolArgs = BasicPoolArgs<float>;

int64_t PoolWorkspaceFloats(const PoolShape& shape, int threads);
void Pool(const PoolShape& shape, const BasicPoolArgs<float>& args);
void Pool(const PoolShape& shape, const BasicPoolArgs<F16>& args);  // averages are summed in f16
std::span<const Variant<const PoolKernels*>> PoolVariants();
std::span<const Variant<const BasicPoolKernels<F16>*>> PoolF16Variants();

}  // namespace celer
