#include "kernels/network/conv/conv.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernels/network/conv/winograd.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer {
namespace {

constexpr ConvVariant kConv[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_neon", Isa::kNeon, &kConvArmNeon},
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, &kConvX86Avx512},
    {"x86_avx2", Isa::kAvx2, &kConvX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kConvPortable},
    {"reference", Isa::kBaseline, &kConvReference},
};
constexpr BasicConvVariant<F16> kConvF16[] = {
#if defined(__aarch64__)
    {"arm_fp16", Isa::kArmFp16, &kConvArmFp16},
#endif
    {"reference", Isa::kBaseline, &kConvReferenceF16},
};

// ---- as a GEMM --------------------------------------------------------------------------------------------

bool IsPlainProduct(const ConvShape& s) {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0;
}

Im2col MakeIm2col(const ConvShape& s) {
  return {.channels = s.channels / s.groups,
          .in_h = s.in_h,
          .in_w = s.in_w,
          .kernel_h = s.kernel_h,
          .kernel_w = s.kernel_w,
          .stride_h = s.stride_h,
          .stride_w = s.stride_w,
          .dilation_h = s.dilation_h,
          .dilation_w = s.dilation_w,
          .pad_top = s.pad_top,
          .pad_left = s.pad_left,
          .out_h = s.out_h(),
          .out_w = s.out_w()};
}

// Products of all groups of one image, or of all images if there is one group.
template <class T>
BasicGemmArgs<T> ProductOf(const BasicConvPlan<T>& plan, const Im2col& gather, const BasicConvArgs<T>& args,
                           int64_t image) {
  const ConvShape& s = plan.shape;
  const BasicGemmKernels<T>& gemm = *plan.kernels->gemm;
  const int64_t in_plane = s.in_h * s.in_w, out_plane = s.out_h() * s.out_w();
  const bool grouped = s.groups > 1;
  const int64_t m = s.out_channels / s.groups, k = gather.rows();
  const int64_t in_batch = s.channels / (grouped ? s.groups : 1) * in_plane;
  const int64_t in_at = image * s.channels * in_plane, out_at = image * s.out_channels * out_plane;
  BasicGemmArgs<T> g{.m = m, .n = out_plane, .k = k};
  g.a = BasicGemmOperand<T>::Packed(args.weights, grouped ? GemmPackedAFloats(m, k, gemm) : 0);
  g.b = IsPlainProduct(s) ? BasicGemmOperand<T>::Rows(args.in + in_at, in_plane, in_batch)
                          : BasicGemmOperand<T>::Gathered(args.in + in_at, gather, in_batch);
  g.out = args.out + out_at;
  g.out_stride = out_plane;
  g.epilogue = {.row_bias = args.bias,
                .add = args.add ? args.add + out_at : nullptr,
                .add_stride = out_plane,
                .add_last = args.add_last,
                .f = args.f};
  g.batch = grouped ? s.groups : s.batch;
  g.out_batch_stride = g.add_batch_stride = m * out_plane;
  g.row_bias_batch_stride = grouped ? m : 0;
  g.workspace = args.workspace;
  g.pool = args.pool;
  return g;
}

// ---- one pixel --------------------------------------------------------------------------------------------

// The kernel covers the whole image: a GEMV, or with several images a GEMM whose columns are channels.
template <class T>
BasicGemmArgs<T> VectorsOf(const BasicConvPlan<T>& plan, const BasicConvArgs<T>& args) {
  const ConvShape& s = plan.shape;
  BasicGemmArgs<T> g{.m = s.batch, .n = s.out_channels, .k = s.channels * s.in_h * s.in_w};
  g.a = BasicGemmOperand<T>::Rows(args.in, g.k);
  g.b = BasicGemmOperand<T>::Packed(args.weights);
  g.out = args.out;
  g.out_stride = g.n;
  g.epilogue = {
      .col_bias = args.bias, .add = args.add, .add_stride = g.n, .add_last = args.add_last, .f = args.f};
  g.workspace = args.workspace;
  g.pool = args.pool;
  return g;
}

// ---- depthwise --------------------------------------------------------------------------------------------

int64_t DepthwiseScratchFloats(const ConvShape& s) {
  const PaddedLayout l = LayoutOf(s.out_h(), s.out_w(), s.kernel_h, s.kernel_w, s.stride_h, s.stride_w,
                                  s.dilation_h, s.dilation_w);
  return (l.floats + s.out_h() * s.out_w() + 15) / 16 * 16;
}

template <class T>
void DepthwiseConv(const BasicConvPlan<T>& plan, const BasicConvArgs<T>& args) {
  const ConvShape& s = plan.shape;
  const int64_t scratch = DepthwiseScratchFloats(s), planes = s.batch * s.out_channels;
  const int64_t taps = s.kernel_h * s.kernel_w, out_plane = s.out_h() * s.out_w();
  const int64_t per_input = s.out_channels / s.channels;
  const auto plane = [&](int64_t i, int thread) {
    const int64_t o = i % s.out_channels;
    plan.kernels->depthwise({.in = args.in + i / per_input * s.in_h * s.in_w,
                             .in_h = s.in_h,
                             .in_w = s.in_w,
                             .weights = args.weights + o * taps,
                             .kernel_h = s.kernel_h,
                             .kernel_w = s.kernel_w,
                             .stride_h = s.stride_h,
                             .stride_w = s.stride_w,
                             .dilation_h = s.dilation_h,
                             .dilation_w = s.dilation_w,
                             .pad_top = s.pad_top,
                             .pad_left = s.pad_left,
                             .bias = args.bias ? args.bias[o] : 0.0f,
                             .add = args.add ? args.add + i * out_plane : nullptr,
                             .add_last = args.add_last,
                             .f = args.f,
                             .out = args.out + i * out_plane,
                             .out_h = s.out_h(),
                             .out_w = s.out_w(),
                             .scratch = args.workspace + thread * scratch});
  };
  const double work = s.flops();
  if (work < 1e5 || args.pool->size() == 1) {
    for (int64_t i = 0; i < planes; ++i) plane(i, 0);
    return;
  }
  // Several planes at a time where they are small: threads then meet less often.
  const int64_t grain = std::clamp<int64_t>(planes / (4 * args.pool->size()), 1, 16);
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t i = next.fetch_add(grain); i < planes; i = next.fetch_add(grain))
      for (int64_t j = i; j < std::min(i + grain, planes); ++j) plane(j, thread);
  });
}

void CheckShape(const ConvShape& s) {
  CELER_CHECK(s.batch >= 0 && s.channels > 0 && s.out_channels > 0 && s.groups > 0);
  CELER_CHECK_EQ(s.channels % s.groups, 0);
  CELER_CHECK_EQ(s.out_channels % s.groups, 0);
  CELER_CHECK(s.kernel_h > 0 && s.kernel_w > 0 && s.stride_h > 0 && s.stride_w > 0);
  CELER_CHECK(s.dilation_h > 0 && s.dilation_w > 0);
  CELER_CHECK(s.pad_top >= 0 && s.pad_left >= 0 && s.pad_bottom >= 0 && s.pad_right >= 0);
  CELER_CHECK(s.in_h + s.pad_top + s.pad_bottom > s.dilation_h * (s.kernel_h - 1));
  CELER_CHECK(s.in_w + s.pad_left + s.pad_right > s.dilation_w * (s.kernel_w - 1));
}

// By measurement on Neoverse-V1. Winograd's transforms cost as much per channel whatever the number of
// channels on the other side is.
template <class T>
ConvWay FastestWay(const ConvShape& s, const BasicConvKernels<T>& kernels) {
  if (CanDo(ConvWay::kDepthwise, s, kernels)) return ConvWay::kDepthwise;
  if (CanDo(ConvWay::kVector, s, kernels)) return ConvWay::kVector;
  // Tiles are the lanes of its products, a third of the columns of a tile there: the four tiles of 7 x 7
  // pixels leave half a vector of f16 empty, and three quarters of one of AVX-512.
  const int64_t tiles = (s.out_h() + 3) / 4 * ((s.out_w() + 3) / 4), lanes = kernels.gemm->nr / 3;
  const bool fills = tiles >= 4 && 2 * tiles > lanes;
  if (CanDo(ConvWay::kWinograd, s, kernels) && s.channels >= 16 && s.out_channels >= 16 && fills)
    return ConvWay::kWinograd;
  return ConvWay::kProduct;
}

}  // namespace

std::span<const ConvVariant> ConvVariants() {
  return kConv;
}

std::span<const BasicConvVariant<F16>> ConvF16Variants() {
  return kConvF16;
}

template <>
const BasicConvKernels<float>& ChosenConvOf<float>() {
  static const ConvKernels& chosen = *Pick<const ConvKernels*>("conv", kConv)->run;
  return chosen;
}
template <>
const BasicConvKernels<F16>& ChosenConvOf<F16>() {
  static const BasicConvKernels<F16>& chosen = *Pick<const BasicConvKernels<F16>*>("conv_f16", kConvF16)->run;
  return chosen;
}

template <class T>
bool CanDo(ConvWay way, const ConvShape& s, const BasicConvKernels<T>& kernels) {
  switch (way) {
    case ConvWay::kProduct:
      return true;
    case ConvWay::kDepthwise:
      return s.groups == s.channels && s.groups > 1;
    case ConvWay::kWinograd:
      return kernels.winograd_input && s.groups == 1 && s.kernel_h == 3 && s.kernel_w == 3 &&
             s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1;
    case ConvWay::kVector:
      return s.groups == 1 && s.kernel_h == s.in_h && s.kernel_w == s.in_w && s.dilation_h == 1 &&
             s.dilation_w == 1 && s.pad_top == 0 && s.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0;
  }
  return false;
}

template <class T>
BasicConvPlan<T> PlanConv(const ConvShape& shape, std::optional<ConvWay> way,
                          const BasicConvKernels<T>& kernels) {
  CheckShape(shape);
  const BasicConvPlan<T> plan{shape, way ? *way : FastestWay(shape, kernels), &kernels};
  CELER_CHECK(CanDo(plan.way, shape, kernels));
  return plan;
}

template <class T>
int64_t ConvPackedFloats(const BasicConvPlan<T>& plan) {
  const ConvShape& s = plan.shape;
  const int64_t k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  switch (plan.way) {
    case ConvWay::kProduct:
      return GemmPackedAFloats(s.out_channels / s.groups, k, *plan.kernels->gemm) * s.groups;
    case ConvWay::kDepthwise:
      return s.out_channels * k;
    case ConvWay::kWinograd:
      return WinogradPackedFloats(plan);
    case ConvWay::kVector:
      return GemmPackedBFloats(k, s.out_channels, *plan.kernels->gemm);
  }
  return 0;
}

template <class T>
void PackConv(const BasicConvPlan<T>& plan, const float* weights_f32, T* packed) {
  const ConvShape& s = plan.shape;
  if (plan.way == ConvWay::kWinograd) return PackWinograd(plan, weights_f32, packed);
  const T* weights;
  std::vector<T> rounded;
  if constexpr (std::is_same_v<T, float>) {
    weights = weights_f32;
  } else {
    rounded.resize(s.out_channels * (s.channels / s.groups) * s.kernel_h * s.kernel_w);
    ToF16(weights_f32, rounded.data(), static_cast<int64_t>(rounded.size()));
    weights = rounded.data();
  }
  const int64_t m = s.out_channels / s.groups, k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  switch (plan.way) {
    case ConvWay::kProduct:
      for (int64_t g = 0; g < s.groups; ++g)
        GemmPackA(BasicGemmOperand<T>::Rows(weights + g * m * k, k), m, k,
                  packed + g * GemmPackedAFloats(m, k, *plan.kernels->gemm), *plan.kernels->gemm);
      return;
    case ConvWay::kDepthwise:
      std::copy_n(weights, s.out_channels * k, packed);
      return;
    case ConvWay::kWinograd:
      return;
    case ConvWay::kVector:
      return GemmPackB(BasicGemmOperand<T>::Transposed(weights, k), k, s.out_channels, packed,
                       *plan.kernels->gemm);
  }
}

template <class T>
int64_t ConvWorkspaceFloats(const BasicConvPlan<T>& plan, int threads) {
  switch (plan.way) {
    case ConvWay::kProduct: {
      const Im2col gather = MakeIm2col(plan.shape);
      // The workspace can depend on whether `add` is the output: take the larger one.
      T out{};
      BasicGemmArgs<T> g = ProductOf(plan, gather, BasicConvArgs<T>{.weights = &out, .out = &out}, 0);
      g.out = &out;
      const int64_t apart = GemmWorkspaceFloats(g, threads, *plan.kernels->gemm);
      g.epilogue = {.add = &out, .add_last = true, .f = {Pointwise::Kind::kSilu}};
      return std::max(apart, GemmWorkspaceFloats(g, threads, *plan.kernels->gemm));
    }
    case ConvWay::kDepthwise:
      return DepthwiseScratchFloats(plan.shape) * threads;
    case ConvWay::kWinograd:
      return WinogradWorkspaceFloats(plan, threads);
    case ConvWay::kVector: {
      T out{};
      BasicGemmArgs<T> g = VectorsOf(plan, BasicConvArgs<T>{.weights = &out, .out = &out});
      const int64_t apart = GemmWorkspaceFloats(g, threads, *plan.kernels->gemm);
      g.epilogue = {.add = &out, .add_last = true, .f = {Pointwise::Kind::kSilu}};
      return std::max(apart, GemmWorkspaceFloats(g, threads, *plan.kernels->gemm));
    }
  }
  return 0;
}

template <class T>
static void RunConv(const BasicConvPlan<T>& plan, const BasicConvArgs<T>& args) {
  CELER_CHECK(args.in && args.weights && args.out && args.pool);
  const ConvShape& s = plan.shape;
  switch (plan.way) {
    case ConvWay::kProduct: {
      const Im2col gather = MakeIm2col(s);
      if (s.groups == 1) return Gemm(ProductOf(plan, gather, args, 0), *plan.kernels->gemm);
      for (int64_t image = 0; image < s.batch; ++image)
        Gemm(ProductOf(plan, gather, args, image), *plan.kernels->gemm);
      return;
    }
    case ConvWay::kDepthwise:
      return DepthwiseConv(plan, args);
    case ConvWay::kWinograd:
      return WinogradConv(plan, args);
    case ConvWay::kVector:
      return Gemm(VectorsOf(plan, args), *plan.kernels->gemm);
  }
}

void Conv(const BasicConvPlan<float>& plan, const BasicConvArgs<float>& args) {
  RunConv(plan, args);
}
void Conv(const BasicConvPlan<F16>& plan, const BasicConvArgs<F16>& args) {
  RunConv(plan, args);
}

#define CELER_INSTANTIATE(T)                                                                                \
  template bool CanDo(ConvWay, const ConvShape&, const BasicConvKernels<T>&);                               \
  template BasicConvPlan<T> PlanConv(const ConvShape&, std::optional<ConvWay>, const BasicConvKernels<T>&); \
  template int64_t ConvPackedFloats(const BasicConvPlan<T>&);                                               \
  template void PackConv(const BasicConvPlan<T>&, const float*, T*);                                        \
  template int64_t ConvWorkspaceFloats(const BasicConvPlan<T>&, int)
CELER_INSTANTIATE(float);
CELER_INSTANTIATE(F16);
#undef CELER_INSTANTIATE

}  // namespace celer
