// The micro-kernels of an instruction set for convolutions besides its GEMM: depthwise planes, and the
// transforms of Winograd's algorithm. Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

#include "kernels/network/conv/padded_layout.h"
#include "kernels/shared/gemm/epilogue.h"
#include "kernels/shared/gemm/gemm_kernels.h"

namespace celer {

// One plane of a depthwise convolution.
template <class T>
struct BasicDepthwisePlane {
  const T* in = nullptr;  // [in_h, in_w]
  int64_t in_h = 0, in_w = 0;
  const T* weights = nullptr;  // [kernel_h, kernel_w]
  int64_t kernel_h = 0, kernel_w = 0;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  float bias = 0;
  const T* add = nullptr;  // [out_h, out_w], or none; may be out
  bool add_last = false;
  Pointwise f = {};
  T* out = nullptr;  // [out_h, out_w]
  int64_t out_h = 0, out_w = 0;
  T* scratch = nullptr;  // the padded input; behind it, if there is `add`, the output before it
};
using DepthwisePlane = BasicDepthwisePlane<float>;

// Winograd's F(4x4, 3x3): a tile of 4 x 4 outputs from 6 x 6 inputs by 36 multiplications instead of 144.
constexpr int64_t kWinogradOut = 4, kWinogradIn = 6, kWinogradPoints = 36;

struct WinogradGeometry {
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0, pad_top = 0, pad_left = 0;
  int64_t tiles_x = 0;  // tile t covers outputs from row t / tiles_x * 4, column t % tiles_x * 4 on
};

// Channels [c, c + channels) of tiles [tile, tile + tiles), as panels of nr tiles: point p of channel c of
// tile t is to[p * point_stride + t / nr * panel + c * nr + t % nr]. Lanes behind the last tile are left
// alone.
template <class T>
struct BasicWinogradInput {
  WinogradGeometry geometry = {};
  const T* in = nullptr;      // [all channels, in_h, in_w]
  const T* in_end = nullptr;  // of the memory that may be read
  int64_t channel = 0, channels = 0, tile = 0, tiles = 0;
  T* to = nullptr;
  int64_t point_stride = 0, panel = 0;
};

// Rows [0, rows) of sums, [rows, 36, sums_stride], of tiles [tile, tile + tiles), to as many channels of out.
template <class T>
struct BasicWinogradOutput {
  WinogradGeometry geometry = {};
  const T* sums = nullptr;
  int64_t sums_stride = 0;
  int64_t rows = 0, tile = 0, tiles = 0;
  const float* bias = nullptr;  // [rows], or none
  const T* add = nullptr;       // [rows, out_h, out_w], or none; may be out
  bool add_last = false;
  Pointwise f = {};
  T* out = nullptr;  // [rows, out_h, out_w]
};

template <class T>
struct BasicConvKernels {
  const char* name = nullptr;
  const BasicGemmKernels<T>* gemm = nullptr;
  void (*depthwise)(const BasicDepthwisePlane<T>& p) = nullptr;
  void (*winograd_input)(const BasicWinogradInput<T>& w) = nullptr;
  void (*winograd_output)(const BasicWinogradOutput<T>& w) = nullptr;
};
using ConvKernels = BasicConvKernels<float>;

extern const ConvKernels kConvReference, kConvPortable;
extern const BasicConvKernels<F16> kConvReferenceF16;
#if defined(__aarch64__)
extern const BasicConvKernels<F16> kConvArmFp16;
extern const ConvKernels kConvArmNeon;
#elif defined(__x86_64__)
extern const ConvKernels kConvX86Avx2, kConvX86Avx512;
#endif

}  // namespace celer
