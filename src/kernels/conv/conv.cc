#include "kernels/conv/conv.h"

#include <algorithm>
#include <atomic>

#include "core/check.h"
#include "kernels/conv/winograd.h"
#include "kernels/gemm/gemm.h"

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

// ---- as a product -----------------------------------------------------------------------------------------

bool IsPlainProduct(const ConvShape& s) {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0;
}

Im2col GatherOf(const ConvShape& s) {
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
GemmArgs ProductOf(const ConvPlan& plan, const Im2col& gather, const ConvArgs& args, int64_t image) {
  const ConvShape& s = plan.shape;
  const GemmKernels& gemm = *plan.kernels->gemm;
  const int64_t in_plane = s.in_h * s.in_w, out_plane = s.out_h() * s.out_w();
  const bool grouped = s.groups > 1;
  const int64_t m = s.out_channels / s.groups, k = gather.rows();
  const int64_t in_batch = s.channels / (grouped ? s.groups : 1) * in_plane;
  const int64_t in_at = image * s.channels * in_plane, out_at = image * s.out_channels * out_plane;
  GemmArgs g{.m = m, .n = out_plane, .k = k};
  g.a = GemmOperand::Packed(args.weights, grouped ? GemmPackedAFloats(m, k, gemm) : 0);
  g.b = IsPlainProduct(s) ? GemmOperand::Rows(args.in + in_at, in_plane, in_batch)
                          : GemmOperand::Gathered(args.in + in_at, gather, in_batch);
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

// The window is the whole image: rows are images, and channels are columns, which fill vectors.
GemmArgs VectorsOf(const ConvPlan& plan, const ConvArgs& args) {
  const ConvShape& s = plan.shape;
  GemmArgs g{.m = s.batch, .n = s.out_channels, .k = s.channels * s.in_h * s.in_w};
  g.a = GemmOperand::Rows(args.in, g.k);
  g.b = GemmOperand::Packed(args.weights);
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

void DepthwiseConv(const ConvPlan& plan, const ConvArgs& args) {
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
ConvWay FastestWay(const ConvShape& s, const ConvKernels& kernels) {
  if (CanDo(ConvWay::kDepthwise, s, kernels)) return ConvWay::kDepthwise;
  if (CanDo(ConvWay::kVector, s, kernels)) return ConvWay::kVector;
  if (CanDo(ConvWay::kWinograd, s, kernels) && s.channels >= 16 && s.out_channels >= 16)
    return ConvWay::kWinograd;
  return ConvWay::kProduct;
}

}  // namespace

std::span<const ConvVariant> ConvVariants() {
  return kConv;
}

const ConvKernels& ChosenConv() {
  static const ConvKernels& chosen = *Pick<const ConvKernels*>("conv", kConv)->run;
  return chosen;
}

bool CanDo(ConvWay way, const ConvShape& s, const ConvKernels& kernels) {
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

ConvPlan PlanConv(const ConvShape& shape, std::optional<ConvWay> way, const ConvKernels& kernels) {
  CheckShape(shape);
  const ConvPlan plan{shape, way ? *way : FastestWay(shape, kernels), &kernels};
  CELER_CHECK(CanDo(plan.way, shape, kernels));
  return plan;
}

int64_t ConvPackedFloats(const ConvPlan& plan) {
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

void PackConv(const ConvPlan& plan, const float* weights, float* packed) {
  const ConvShape& s = plan.shape;
  const int64_t m = s.out_channels / s.groups, k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  switch (plan.way) {
    case ConvWay::kProduct:
      for (int64_t g = 0; g < s.groups; ++g)
        GemmPackA(GemmOperand::Rows(weights + g * m * k, k), m, k,
                  packed + g * GemmPackedAFloats(m, k, *plan.kernels->gemm), *plan.kernels->gemm);
      return;
    case ConvWay::kDepthwise:
      std::copy_n(weights, s.out_channels * k, packed);
      return;
    case ConvWay::kWinograd:
      return PackWinograd(plan, weights, packed);
    case ConvWay::kVector:
      return GemmPackB(GemmOperand::Transposed(weights, k), k, s.out_channels, packed, *plan.kernels->gemm);
  }
}

int64_t ConvWorkspaceFloats(const ConvPlan& plan, int threads) {
  switch (plan.way) {
    case ConvWay::kProduct: {
      const Im2col gather = GatherOf(plan.shape);
      // The workspace can depend on whether `add` is the output: take the larger one.
      float out = 0;
      GemmArgs g = ProductOf(plan, gather, {.weights = &out, .out = &out}, 0);
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
      float out = 0;
      GemmArgs g = VectorsOf(plan, {.weights = &out, .out = &out});
      const int64_t apart = GemmWorkspaceFloats(g, threads, *plan.kernels->gemm);
      g.epilogue = {.add = &out, .add_last = true, .f = {Pointwise::Kind::kSilu}};
      return std::max(apart, GemmWorkspaceFloats(g, threads, *plan.kernels->gemm));
    }
  }
  return 0;
}

void Conv(const ConvPlan& plan, const ConvArgs& args) {
  CELER_CHECK(args.in && args.weights && args.out && args.pool);
  const ConvShape& s = plan.shape;
  switch (plan.way) {
    case ConvWay::kProduct: {
      const Im2col gather = GatherOf(s);
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

}  // namespace celer
