// Operators over rows: softmax, norms, sums; and pools, whose global forms are sums too.
#include <cmath>

#include "device/aligned_vector.h"
#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/reduce.h"
#include "graph/ops/window.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/network/pool/pool.h"
#include "kernels/network/rows/rows.h"

namespace celer::graph {
namespace {

template <class T>
bool Is(const InferContext& c) {
  return c.dtype(0) == kDTypeOf<T> && c.elements(0) > 0;
}
bool Wants(const InferContext& c, size_t output) {
  return output < c.node.outputs.size() && c.node.outputs[output] != kNoValue;
}

// Channels of [batch, channels, ...]: x scale + shift, plane by plane.
void ScalePlane(const float* x, float scale, float shift, float* out, int64_t n) {
  BinaryRow(Binary::kMul, {}, x, 1, &scale, 0, out, n);
  BinaryRow(Binary::kAdd, {}, out, 1, &shift, 0, out, n);
}

struct ChannelState {
  std::vector<float> scale, shift;
};

struct SumState {
  Around around;
  float factor;
};

// Of images, without places, and with a window that is not far beyond the image.
bool IsPlainPool(const InferContext& c) {
  if (c.shape(0).rank() > 4 || Wants(c, 1)) return false;
  const auto window = SlidingWindow(c.node, c.shape(0), c.node.Ints("kernel_shape"));
  return window && window->Modest();
}

PoolShape PoolShapeOf(const Node& node, const Shape& x, const Window& w) {
  return {.kind = node.op == "MaxPool" ? PoolKind::kMax : PoolKind::kAverage,
          .planes = x[0] * x[1],
          .in_h = w.in[1],
          .in_w = w.in[2],
          .kernel_h = w.kernel[1],
          .kernel_w = w.kernel[2],
          .stride_h = w.stride[1],
          .stride_w = w.stride[2],
          .dilation_h = w.dilation[1],
          .dilation_w = w.dilation[2],
          .pad_top = w.before[1],
          .pad_left = w.before[2],
          .pad_bottom = w.after[1],
          .pad_right = w.after[2],
          .out_h = w.out[1],
          .out_w = w.out[2],
          .count_border = node.Int("count_include_pad", 0) != 0};
}

template <class T>
bool PoolFits(const InferContext& c) {
  return Is<T>(c) && (std::is_same_v<T, float> || c.node.op == "MaxPool") && IsPlainPool(c);
}
Prepared PreparePool(const InferContext& c, int threads, PackCache&) {
  const auto window = SlidingWindow(c.node, c.shape(0), c.node.Ints("kernel_shape"));
  auto shape = std::make_shared<PoolShape>(PoolShapeOf(c.node, c.shape(0), *window));
  const int64_t floats = PoolWorkspaceFloats(*shape, threads);
  return {std::move(shape), floats * static_cast<int64_t>(sizeof(float))};
}
template <class T>
Status RunPool(KernelContext& c) {
  Pool(*static_cast<const PoolShape*>(c.state),
       BasicPoolArgs<T>{.in = c.in(0).as<T>(),
                        .out = c.out(0).as<T>(),
                        .workspace = reinterpret_cast<float*>(c.workspace),
                        .pool = &c.pool});
  return {};
}

template <class T>
Status RunGlobalAverage(KernelContext& c) {
  const int64_t rows = c.out_elements(0);
  MeanOfRows(c.in(0).as<T>(), c.out(0).as<T>(), rows, c.elements(0) / rows, c.pool);
  return {};
}

Status RunSoftmax(KernelContext& c) {
  CELER_ASSIGN(const Around a, SoftmaxAround(c));
  if (a.inner == 1)
    celer::Softmax(c.in(0).as<float>(), c.out(0).as<float>(), a.outer, a.n, c.pool);
  else
    SoftmaxColumns(c.in(0).as<float>(), c.out(0).as<float>(), a.outer, a.n, a.inner, c.pool);
  return {};
}

bool LayerNormFits(const InferContext& c) {
  if (!Is<float>(c) || Wants(c, 1) || Wants(c, 2)) return false;
  const auto axis = CheckAxis(c.node.Int("axis", -1), c.shape(0).rank());
  const int64_t cols = Product(c.shape(0), *axis, c.shape(0).rank());
  for (size_t i = 1; i < c.inputs(); ++i)
    if (c.has(i) && (c.dtype(i) != DType::kF32 || c.elements(i) != cols)) return false;
  // As many numbers as a row has are one per element of it, unless the row is one number and they vary.
  return c.shape(1).rank() <= c.shape(0).rank() - *axis && cols > 1;
}
Status RunLayerNorm(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank()));
  celer::LayerNorm({.x = c.in(0).as<float>(),
                    .scale = c.in(1).as<float>(),
                    .shift = c.has(2) ? c.in(2).as<float>() : nullptr,
                    .eps = c.node.Float("epsilon", 1e-5f),
                    .out = c.out(0).as<float>(),
                    .rows = Product(c.shape(0), 0, axis),
                    .cols = Product(c.shape(0), axis, c.shape(0).rank()),
                    .pool = &c.pool});
  return {};
}

bool GroupNormFits(const InferContext& c) {
  return Is<float>(c) && c.dtype(1) == DType::kF32 && c.dtype(2) == DType::kF32 &&
         c.elements(1) == c.shape(0)[1] && c.elements(2) == c.shape(0)[1];
}
Status RunGroupNorm(KernelContext& c) {
  const Shape& in = c.shape(0);
  const int64_t channels = in[1], size = Product(in, 2, in.rank()),
                groups = c.node.op == "InstanceNormalization" ? channels : c.node.Int("num_groups", 1),
                per = channels / groups;
  const float eps = c.node.Float("epsilon", 1e-5f);
  const float *const scale = c.in(1).as<float>(), *const shift = c.in(2).as<float>();
  Parallel(c.pool, in[0] * groups, per * size * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const y = c.out(0).as<float>() + r * per * size;
      LayerNormRow(c.in(0).as<float>() + r * per * size, eps, y, per * size);
      for (int64_t k = 0; k < per; ++k) {
        const int64_t channel = r % groups * per + k;
        ScalePlane(y + k * size, scale[channel], shift[channel], y + k * size, size);
      }
    }
  });
  return {};
}

bool BatchNormFits(const InferContext& c) {
  if (!Is<float>(c) || c.shape(0).rank() < 2 || c.node.Int("training_mode", 0) != 0) return false;
  for (size_t i = 1; i < 5; ++i)
    if (!c.known(i) || c.dtype(i) != DType::kF32) return false;
  return true;
}
Prepared PrepareBatchNorm(const InferContext& c, int, PackCache&) {
  auto state = std::make_shared<ChannelState>();
  const double eps = c.node.Float("epsilon", 1e-5f);
  for (int64_t i = 0; i < c.elements(1); ++i) {
    const auto at = [&](size_t input) { return static_cast<double>(c.in(input).as<float>()[i]); };
    const double scale = at(1) / std::sqrt(at(4) + eps);
    state->scale.push_back(static_cast<float>(scale));
    state->shift.push_back(static_cast<float>(at(2) - at(3) * scale));
  }
  return {std::move(state), 0};
}
Status RunBatchNorm(KernelContext& c) {
  const auto& state = *static_cast<const ChannelState*>(c.state);
  const Shape& in = c.shape(0);
  const int64_t size = Product(in, 2, in.rank());
  Parallel(c.pool, in[0] * in[1], size, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto channel = static_cast<size_t>(p % in[1]);
      ScalePlane(c.in(0).as<float>() + p * size, state.scale[channel], state.shift[channel],
                 c.out(0).as<float>() + p * size, size);
    }
  });
  return {};
}

bool SumFits(const InferContext& c) {
  return Is<float>(c) && ReducedRange(c).has_value();
}
Prepared PrepareSum(const InferContext& c, int, PackCache&) {
  const Around a = *ReducedRange(c);
  const float factor = c.node.op == "ReduceMean" ? 1.0f / static_cast<float>(a.n) : 1.0f;
  return {std::make_shared<SumState>(SumState{a, factor}), 0};
}
Status RunSum(KernelContext& c) {
  const auto& [a, factor] = *static_cast<const SumState*>(c.state);
  if (a.inner == 1)
    SumRows(c.in(0).as<float>(), factor, c.out(0).as<float>(), a.outer, a.n, c.pool);
  else
    SumColumns(c.in(0).as<float>(), factor, c.out(0).as<float>(), a.outer, a.n, a.inner, c.pool);
  return {};
}

}  // namespace

constexpr FastKernel kFastPool[] = {{"planes", PoolFits<float>, RunPool<float>, PreparePool},
                                    {"planes f16", PoolFits<F16>, RunPool<F16>, PreparePool}};
constexpr FastKernel kFastGlobalAverage[] = {{"rows", Is<float>, RunGlobalAverage<float>},
                                             {"rows f16", Is<F16>, RunGlobalAverage<F16>}};
constexpr FastKernel kFastSoftmax[] = {{"rows", Is<float>, RunSoftmax}};
constexpr FastKernel kFastLayerNorm[] = {{"rows", LayerNormFits, RunLayerNorm, nullptr, 0}};
constexpr FastKernel kFastGroupNorm[] = {{"rows", GroupNormFits, RunGroupNorm, nullptr, 0}};
constexpr FastKernel kFastBatchNorm[] = {{"rows", BatchNormFits, RunBatchNorm, PrepareBatchNorm}};
constexpr FastKernel kFastSum[] = {{"rows", SumFits, RunSum, PrepareSum}};

}  // namespace celer::graph
