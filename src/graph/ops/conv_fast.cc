#include <cmath>

#include "graph/operator_table.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast.h"
#include "graph/ops/window.h"
#include "kernels/conv/conv.h"
#include "kernels/elementwise/elementwise.h"

namespace celer::graph {
namespace {

struct State {
  ConvPlan plan;
  PackCache::Packed weights;
  Pointwise f;
};

Result<ConvShape> ShapeOf(const Node& node, const Shape& x, const Shape& w) {
  const std::vector<int64_t> kernel = {w[2], w[3]};
  CELER_ASSIGN(const Window window, SlidingWindow(node, x, kernel));
  return ConvShape{.batch = x[0],
                   .channels = x[1],
                   .in_h = x[2],
                   .in_w = x[3],
                   .out_channels = w[0],
                   .groups = node.Int("group", 1),
                   .kernel_h = w[2],
                   .kernel_w = w[3],
                   .stride_h = window.stride[1],
                   .stride_w = window.stride[2],
                   .dilation_h = window.dilation[1],
                   .dilation_w = window.dilation[2],
                   .pad_top = window.before[1],
                   .pad_left = window.before[2],
                   .pad_bottom = window.after[1],
                   .pad_right = window.after[2]};
}

Pointwise ActivationOf(const Node& node) {
  using K = Pointwise::Kind;
  constexpr std::pair<std::string_view, K> kNames[] = {
      {"clip", K::kClip},
      {"leaky_relu", K::kLeakyRelu},
      {"sigmoid", K::kSigmoid},
      {"silu", K::kSilu},
      {"tanh", K::kTanh},
      {"hard_sigmoid", K::kHardSigmoid},
      {"hard_swish", K::kHardSwish},
      {"gelu", K::kGelu},
  };
  const std::string name = node.Text("activation", "");
  for (const auto& [text, kind] : kNames)
    if (text == name) return {kind, node.Float("a", 0), node.Float("b", 0)};
  return {};
}

// --- the fused operator's plain form ---

// As Conv sees it, without what follows.
std::vector<const Data*> ConvInputs(const OpInputs& c) {
  std::vector<const Data*> in = {&c.data(0), &c.data(1)};
  if (c.has(2)) in.push_back(&c.data(2));
  return in;
}

Status InferFused(InferContext& c) {
  std::vector<InferContext::Output> types(1);
  const std::vector<const Data*> in = ConvInputs(c);
  InferContext conv(c.node, in, types);
  CELER_RETURN_IF_ERROR(FindOperator("", "Conv", 11)->infer(conv));
  if (c.has(3) && !(c.shape(3) == types[0].shape))
    return Error::Invalid("it adds ", c.shape(3).ToString(), " to ", types[0].shape.ToString());
  return c.Set(0, types[0].dtype, types[0].shape);
}

Status Fused(KernelContext& c) {
  const std::vector<const Data*> in = ConvInputs(c);
  std::vector<Data> out = {Data::Of(c.out(0))};
  KernelContext conv(c.node, in, out, c.pool, c.subgraphs);
  CELER_RETURN_IF_ERROR(FindOperator("", "Conv", 11)->reference(conv));
  float* const y = c.out(0).as<float>();
  const int64_t n = c.out_elements(0);
  if (c.has(3))
    for (int64_t i = 0; i < n; ++i) y[i] += c.in(3).as<float>()[i];
  ApplyPointwise(ActivationOf(c.node), y, y, n, c.pool);
  return {};
}

double FusedFlops(const InferContext& c) {
  const Shape& w = c.shape(1);
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(Product(w, 1, w.rank()));
}

constexpr Operator kRows[] = {
    {.name = "Conv",
     .since = 1,
     .inputs = {2, 4},
     .outputs = {1, 1},
     .types = {DType::kF32},
     .infer = InferFused,
     .reference = Fused,
     .traits = Operator::kPlain,
     .flops = FusedFlops,
     .fast = kFastConv,
     .domain = kCelerDomain},
};

}  // namespace

std::span<const Operator> FusedOperators() {
  return kRows;
}

bool ConvFits(const InferContext& c) {
  if (c.dtype(0) != DType::kF32 || c.shape(0).rank() != 4 || !c.known(1) ||
      (c.has(2) && c.dtype(2) != DType::kF32))
    return false;
  if (c.elements(0) == 0 || c.elements(1) == 0) return false;
  const auto shape = ShapeOf(c.node, c.shape(0), c.shape(1));
  return shape && shape->out_h() > 0 && shape->out_w() > 0;
}

Prepared PrepareConv(const InferContext& c, int threads, PackCache& packs) {
  const ConvPlan plan = PlanConv(*ShapeOf(c.node, c.shape(0), c.shape(1)));
  const auto pack = [&] {
    AlignedVector<float> packed(static_cast<size_t>(ConvPackedFloats(plan)));
    PackConv(plan, c.in(1).as<float>(), packed.data());
    return packed;
  };
  const std::string how =
      "conv " + std::to_string(static_cast<int>(plan.way)) + " " + std::to_string(plan.shape.groups);
  auto state = std::make_shared<State>(State{plan, packs.Get(c.in(1).data, how, pack), ActivationOf(c.node)});
  return {std::move(state), ConvWorkspaceFloats(plan, threads) * static_cast<int64_t>(sizeof(float))};
}

Status RunConv(KernelContext& c) {
  const auto& state = *static_cast<const State*>(c.state);
  celer::Conv(state.plan, {.in = c.in(0).as<float>(),
                           .weights = state.weights->data(),
                           .bias = c.has(2) ? c.in(2).as<float>() : nullptr,
                           .add = c.has(3) ? c.in(3).as<float>() : nullptr,
                           .f = state.f,
                           .out = c.out(0).as<float>(),
                           .workspace = reinterpret_cast<float*>(c.workspace),
                           .pool = &c.pool});
  return {};
}

}  // namespace celer::graph
