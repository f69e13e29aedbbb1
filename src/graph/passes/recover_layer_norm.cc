// Layer normalization as exporters write it: d = x - mean(x); d / sqrt(mean(d^2) + eps) * scale + shift.
#include <algorithm>

#include "graph/ir/operator.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

// The mean over the last dimensions, kept as ones: the first of them, counted from the end. 0: it is another
// mean.
int64_t MeanAxis(Rewriter& r, const Node& mean) {
  std::vector<int64_t> axes = mean.Ints("axes");
  if (mean.inputs.size() > 1 && mean.inputs[1] != kNoValue) {
    const Constant* const given = r.ConstantOf(mean.inputs[1]);
    if (!given) return 0;
    axes = ReadInts(given->view());
  }
  if (axes.empty() || mean.Int("keepdims", 1) != 1) return 0;
  const auto rank = r.RankOf(mean.inputs[0]);
  for (int64_t& axis : axes) {
    if (axis >= 0 && !rank) return 0;
    axis = axis >= 0 ? axis - *rank : axis;
  }
  std::sort(axes.begin(), axes.end());
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != -static_cast<int64_t>(axes.size() - i)) return 0;
  return axes[0];
}

// A constant factor or term over the normalized dimensions.
ValueId Affine(Rewriter& r, const Node& node, ValueId normed, int64_t axis) {
  const ValueId other = node.inputs[0] == normed ? node.inputs[1] : node.inputs[0];
  const Constant* const constant = r.ConstantOf(other);
  return constant && static_cast<int64_t>(constant->shape.dims().size()) == -axis ? other : kNoValue;
}

int OnlyReader(Rewriter& r, ValueId value, std::string_view op) {
  if (r.Readers(value) != 1) return -1;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != op || !r.node(n).domain.empty() || r.node(n).inputs.size() != 2)
      continue;
    for (const ValueId id : r.node(n).inputs)
      if (id == value) return static_cast<int>(n);
  }
  return -1;
}

}  // namespace

Result<int> RecoverLayerNorm(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "Div" || !r.node(n).domain.empty()) continue;
    const Node div = r.node(n);
    Node* const sub = r.ProducedBy(div.inputs[0], "Sub");
    Node* const root = r.SingleUseProducer(div.inputs[1], "Sqrt");
    Node* const add = root ? r.SingleUseProducer(root->inputs[0], "Add") : nullptr;
    if (!sub || !add) continue;
    const bool second = r.Scalar(add->inputs[1]).has_value();
    const auto eps = r.Scalar(add->inputs[second ? 1 : 0]);
    Node* const variance = r.SingleUseProducer(add->inputs[second ? 0 : 1], "ReduceMean");
    Node* const mean = r.SingleUseProducer(sub->inputs[1], "ReduceMean");
    if (!eps || !variance || !mean || mean->inputs[0] != sub->inputs[0]) continue;
    Node* square = r.SingleUseProducer(variance->inputs[0], "Pow");
    if (square && (r.Scalar(square->inputs[1]) != 2 || square->inputs[0] != sub->outputs[0]))
      square = nullptr;
    if (!square) {
      square = r.SingleUseProducer(variance->inputs[0], "Mul");
      if (!square || square->inputs[0] != sub->outputs[0] || square->inputs[1] != sub->outputs[0]) continue;
    }
    // The difference is read by the square and by the division, and by nobody else.
    if (r.Readers(sub->outputs[0]) != 2) continue;
    const int64_t axis = MeanAxis(r, *mean);
    if (axis == 0 || MeanAxis(r, *variance) != axis) continue;
    // A scale makes it a layer norm; a shift may follow.
    const int mul = OnlyReader(r, div.outputs[0], "Mul");
    if (mul < 0) continue;
    const ValueId scale = Affine(r, r.node(static_cast<size_t>(mul)), div.outputs[0], axis);
    if (scale == kNoValue) continue;
    const ValueId scaled = r.node(static_cast<size_t>(mul)).outputs[0];
    const int plus = OnlyReader(r, scaled, "Add");
    const ValueId shift = plus < 0 ? kNoValue : Affine(r, r.node(static_cast<size_t>(plus)), scaled, axis);
    Node& last = r.node(static_cast<size_t>(shift == kNoValue ? mul : plus));
    explain(div.Label() + " is part of a layer norm");
    last.op = "LayerNormalization";
    last.opset = 17;
    last.inputs = {sub->inputs[0], scale};
    if (shift != kNoValue) last.inputs.push_back(shift);
    last.attributes = {{"axis", axis}, {"epsilon", static_cast<float>(*eps)}};
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
