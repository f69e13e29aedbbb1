// 2-D convolution of f32 or f16 images [batch, channels, h, w], dense, with its epilogue: bias, an
// activation, a residual. Four algorithms: implicit GEMM over im2col columns (any convolution; 1x1 without
// im2col), direct (depthwise), Winograd's F(4x4, 3x3) (3x3, stride 1, where channels and pixels suffice), and
// GEMV (images of one pixel, as squeeze-and-excitation has them).
//
//   const ConvPlan plan = PlanConv(shape);                     // the way, by shape
//   packed.resize(ConvPackedFloats(plan));                     // once, when the weights are loaded
//   PackConv(plan, weights, packed.data());
//   workspace.resize(ConvWorkspaceFloats(plan, pool.size()));  // part of the caller's arena
//   Conv(plan, {.in = x, .weights = packed.data(), .bias = b, .f = Pointwise::Relu(), .out = y, ...});
//
// What PackConv writes depends on the way, the weights' dimensions and the groups, not on the image: for
// images of other sizes plan again with the same way (PlanConv(shape, plan.way)).
//
// Layout: NCHW in and out, so a caller has no layouts to propagate. A register tile is eight channels by
// twelve neighbouring pixels, and Winograd's tiles are neighbours too, so vectors run along pixels
// everywhere; blocked channels (NCHWc4) would save the packing of columns, a few per cent of the time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/network/conv/conv_kernels.h"
#include "kernels/shared/gemm/epilogue.h"

namespace celer {

struct ConvShape {
  int64_t batch = 1, channels = 0, in_h = 0, in_w = 0;
  int64_t out_channels = 0, groups = 1;  // weights: [out_channels, channels / groups, kernel_h, kernel_w]
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;

  int64_t out_h() const {
    return (in_h + pad_top + pad_bottom - dilation_h * (kernel_h - 1) - 1) / stride_h + 1;
  }
  int64_t out_w() const {
    return (in_w + pad_left + pad_right - dilation_w * (kernel_w - 1) - 1) / stride_w + 1;
  }
  double flops() const {
    return 2.0 * static_cast<double>(batch * out_channels * out_h() * out_w()) *
           static_cast<double>(channels / groups * kernel_h * kernel_w);
  }
};

enum class ConvWay : uint8_t { kProduct, kDepthwise, kWinograd, kVector };

template <class T>
using BasicConvVariant = Variant<const BasicConvKernels<T>*>;
using ConvVariant = BasicConvVariant<float>;
std::span<const ConvVariant> ConvVariants();
std::span<const BasicConvVariant<F16>> ConvF16Variants();

template <class T>
const BasicConvKernels<T>& ChosenConvOf();
template <>
const BasicConvKernels<float>& ChosenConvOf<float>();
template <>
const BasicConvKernels<F16>& ChosenConvOf<F16>();
inline const ConvKernels& ChosenConv() {
  return ChosenConvOf<float>();
}

// For images of T, float or F16. "Floats" in names of sizes are so many of these numbers.
template <class T>
struct BasicConvPlan {
  ConvShape shape;
  ConvWay way = ConvWay::kProduct;
  const BasicConvKernels<T>* kernels = nullptr;
};
using ConvPlan = BasicConvPlan<float>;

// The fastest algorithm as measured, or `way`. A programmer's mistake: a shape without output, or an
// algorithm that cannot do it.
template <class T = float>
BasicConvPlan<T> PlanConv(const ConvShape& shape, std::optional<ConvWay> way = std::nullopt,
                          const BasicConvKernels<T>& kernels = ChosenConvOf<T>());
template <class T = float>
bool CanDo(ConvWay way, const ConvShape& shape, const BasicConvKernels<T>& kernels = ChosenConvOf<T>());

template <class T>
int64_t ConvPackedFloats(const BasicConvPlan<T>& plan);
template <class T>
void PackConv(const BasicConvPlan<T>& plan, const float* weights, T* packed);  // 64-byte aligned

template <class T>
struct BasicConvArgs {
  const T* in = nullptr;        // [batch, channels, in_h, in_w]
  const T* weights = nullptr;   // from PackConv
  const float* bias = nullptr;  // [out_channels], or none
  const T* add = nullptr;       // like out, or none; may be out
  bool add_last = false;        // f(sum + bias) + add; else f(sum + bias + add)
  Pointwise f = {};
  T* out = nullptr;        // [batch, out_channels, out_h, out_w]
  T* workspace = nullptr;  // ConvWorkspaceFloats() for the pool's threads, 64-byte aligned
  ThreadPool* pool = nullptr;
};
using ConvArgs = BasicConvArgs<float>;

template <class T>
int64_t ConvWorkspaceFloats(const BasicConvPlan<T>& plan, int threads);
void Conv(const BasicConvPlan<float>& plan, const BasicConvArgs<float>& args);
void Conv(const BasicConvPlan<F16>& plan, const BasicConvArgs<F16>& args);

}  // namespace celer
