// Epilogue fusion: a convolution adds a residual and applies an activation while its accumulators are in
// registers.
#include "graph/ops/fast/fast.h"
#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

// A convolution with constant f32 weights and a single reader, without an epilogue yet.
Node* PlainConv(Rewriter& r, ValueId value) {
  const int maker = r.ProducerOf(value);
  if (maker < 0 || r.Readers(value) != 1) return nullptr;
  Node& conv = r.node(static_cast<size_t>(maker));
  const bool fused = conv.domain == kCelerDomain;
  if (conv.op != "Conv" || (!conv.domain.empty() && !fused) ||
      (fused && !conv.Text("activation", "").empty()))
    return nullptr;
  const Constant* const weights = r.ConstantOf(conv.inputs[1]);
  const int rank = weights ? weights->shape.rank() : 0;
  return weights && weights->dtype == DType::kF32 && (rank == 3 || rank == 4) ? &conv : nullptr;
}

}  // namespace

Result<int> FuseActivation(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).inputs.empty()) continue;
    if (const auto activation = ActivationOf(r, r.node(n))) {
      Node* const conv = PlainConv(r, r.node(n).inputs[0]);
      if (!conv) continue;
      explain(r.node(n).Label() + " is fused into " + conv->Label());
      MakeFused(*conv);
      SetActivation(*conv, *activation);
      TakeOver(r, *conv, r.node(n));
      ++changes;
      continue;
    }
    if (!r.node(n).domain.empty() || r.node(n).inputs.size() != 2 || r.node(n).op != "Add") continue;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId x = r.node(n).inputs[i], other = r.node(n).inputs[1 - i];
      Node* const conv = PlainConv(r, x);
      if (!conv || conv->inputs.size() > 3 || other == x || !r.LikelySameShape(x, other)) continue;
      explain(r.node(n).Label() + " is fused into " + conv->Label());
      MakeFused(*conv);
      conv->inputs.resize(4, kNoValue);
      conv->inputs[3] = other;
      TakeOver(r, *conv, r.node(n));
      ++changes;
      break;
    }
  }
  return changes;
}

}  // namespace celer::graph
