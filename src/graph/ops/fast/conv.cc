#include "kernels/network/conv/conv.h"
#include "base/safe_math.h"
#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/window.h"
#include "kernels/network/conv/transposed.h"

namespace celer::graph {
namespace {

template <class T>
struct ConvState {
  BasicConvPlan<T> plan;
  PackCache::Packed weights;
  Pointwise f;
};

// One or two spatial dimensions; a missing one in front is of size 1.
Result<ConvShape> ShapeOf(const Node& node, const Shape& x, const Shape& w) {
  const std::vector<int64_t> kernel(w.dims().begin() + 2, w.dims().end());
  CELER_ASSIGN(const Window window, SlidingWindow(node, x, kernel));
  if (!window.Modest()) return Error::Unsupported("pads, strides or dilations far beyond the image");
  return ConvShapeOf(window, x[0], x[1], w[0], node.Int("group", 1));
}

// f16: with weights of f32, as the pass to f16 leaves them. A file whose convolutions are f16 throughout does
// not ask for sums in f16, and does not get them.
template <class T>
bool ConvFits(const InferContext& c) {
  if (c.dtype(0) != kDTypeOf<T> || (std::is_same_v<T, F16> && c.dtype(1) != DType::kF32)) return false;
  const int rank = c.shape(0).rank();
  if (rank < 3 || rank > 4 || !c.known(1) || (c.has(2) && c.dtype(2) != DType::kF32)) return false;
  if (c.elements(0) == 0 || c.elements(1) == 0) return false;
  const auto shape = ShapeOf(c.node, c.shape(0), c.shape(1));
  if (!shape || shape->out_h() <= 0 || shape->out_w() <= 0) return false;
  if (!c.has(3)) return true;
  const auto conv = ConvOutputShape(c);
  return conv && *conv == c.shape(3);
}

// The packed weights of either type lie in memory of the cache, which counts in floats.
template <class T>
Prepared PrepareConv(const InferContext& c, int threads, PackCache& packs) {
  const BasicConvPlan<T> plan = PlanConv<T>(*ShapeOf(c.node, c.shape(0), c.shape(1)));
  const auto pack = [&] {
    const int64_t bytes = ConvPackedFloats(plan) * static_cast<int64_t>(sizeof(T));
    AlignedVector<float> packed(static_cast<size_t>(CeilDiv(bytes, sizeof(float))));
    PackConv(plan, c.in(1).as<float>(), reinterpret_cast<T*>(packed.data()));
    return packed;
  };
  const std::string how = std::string("conv ") + plan.kernels->name + " " +
                          std::to_string(static_cast<int>(plan.way)) + " " +
                          std::to_string(plan.shape.groups);
  auto state = std::make_shared<ConvState<T>>(
      ConvState<T>{plan, packs.Get(c.in(1).data, how, pack), ActivationOf(c.node)});
  return {std::move(state), ConvWorkspaceFloats(plan, threads) * static_cast<int64_t>(sizeof(T))};
}

template <class T>
Status RunConv(KernelContext& c) {
  const auto& state = *static_cast<const ConvState<T>*>(c.state);
  celer::Conv(state.plan, BasicConvArgs<T>{.in = c.in(0).as<T>(),
                                           .weights = reinterpret_cast<const T*>(state.weights->data()),
                                           .bias = c.has(2) ? c.in(2).as<float>() : nullptr,
                                           .add = c.has(3) ? c.in(3).as<T>() : nullptr,
                                           .f = state.f,
                                           .out = c.out(0).as<T>(),
                                           .workspace = reinterpret_cast<T*>(c.workspace),
                                           .pool = &c.pool});
  return {};
}

// Of a transposed convolution.
Result<Window> WindowOf(const InferContext& c) {
  const Shape& w = c.shape(1);
  return TransposedWindow(c.node, c.shape(0), w.dims().subspan(2));
}

struct TransposedState {
  TransposedConvShape shape;
  PackCache::Packed weights;
};

bool ConvTransposeFits(const InferContext& c) {
  const int rank = c.shape(0).rank();
  return c.dtype(0) == DType::kF32 && (rank == 3 || rank == 4) && c.known(1) && c.elements(0) > 0 &&
         c.elements(1) > 0 && (!c.has(2) || c.dtype(2) == DType::kF32) && c.output(0).set &&
         *c.output(0).shape.elements() > 0 && WindowOf(c)->Modest();
}

Prepared PrepareConvTranspose(const InferContext& c, int threads, PackCache& packs) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  const Window window = *WindowOf(c);
  const int64_t groups = c.node.Int("group", 1);
  const TransposedConvShape shape{.batch = x[0],
                                  .channels = x[1],
                                  .in_h = window.in[1],
                                  .in_w = window.in[2],
                                  .out_channels = w[1] * groups,
                                  .groups = groups,
                                  .kernel_h = window.kernel[1],
                                  .kernel_w = window.kernel[2],
                                  .stride_h = window.stride[1],
                                  .stride_w = window.stride[2],
                                  .dilation_h = window.dilation[1],
                                  .dilation_w = window.dilation[2],
                                  .pad_top = window.before[1],
                                  .pad_left = window.before[2],
                                  .out_h = window.out[1],
                                  .out_w = window.out[2]};
  auto weights = packs.Get(c.in(1).data, "transposed " + std::to_string(groups), [&] {
    AlignedVector<float> packed(static_cast<size_t>(TransposedConvPackedFloats(shape)));
    PackTransposedConv(shape, c.in(1).as<float>(), packed.data());
    return packed;
  });
  const int64_t floats = TransposedConvWorkspaceFloats(shape, threads);
  return {std::make_shared<TransposedState>(TransposedState{shape, std::move(weights)}),
          floats * static_cast<int64_t>(sizeof(float))};
}

Status RunConvTranspose(KernelContext& c) {
  const auto& state = *static_cast<const TransposedState*>(c.state);
  TransposedConv(state.shape, {.in = c.in(0).as<float>(),
                               .weights = state.weights->data(),
                               .bias = c.has(2) ? c.in(2).as<float>() : nullptr,
                               .out = c.out(0).as<float>(),
                               .workspace = reinterpret_cast<float*>(c.workspace),
                               .pool = &c.pool});
  return {};
}

}  // namespace

constexpr FastKernel kFastConv[] = {{"conv", ConvFits<float>, RunConv<float>, PrepareConv<float>, 3},
                                    {"conv f16", ConvFits<F16>, RunConv<F16>, PrepareConv<F16>, 3}};
constexpr FastKernel kFastConvTranspose[] = {
    {"product", ConvTransposeFits, RunConvTranspose, PrepareConvTranspose}};

}  // namespace celer::graph
