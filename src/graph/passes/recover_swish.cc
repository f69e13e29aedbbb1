// x sigmoid(x) is SiLU; clip(x + 3, 0, 6) / 6 is a hard sigmoid, and x times that is hard-swish. Exporters
// write them as two to four nodes.
#include <cmath>

#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

bool Near(std::optional<double> a, double b) {
  return a && std::abs(*a - b) < 1e-4 * std::abs(b);
}

bool IsPlain(const Node& node, std::string_view op) {
  return node.op == op && node.domain.empty();
}

// The value of clip(value + 3, 0, 6), if nobody else reads what is between.
ValueId InClip(Rewriter& r, ValueId value) {
  const int maker = r.ProducerOf(value);
  if (maker < 0 || r.Readers(value) != 1) return kNoValue;
  const Node& clip = r.node(static_cast<size_t>(maker));
  const auto bounds = IsPlain(clip, "Clip") ? ActivationOf(r, clip) : std::nullopt;
  if (!bounds || bounds->a != 0 || bounds->b != 6) return kNoValue;
  Node* const add = r.SingleUseProducer(clip.inputs[0], "Add");
  if (!add) return kNoValue;
  if (Near(r.Scalar(add->inputs[1]), 3)) return add->inputs[0];
  return Near(r.Scalar(add->inputs[0]), 3) ? add->inputs[1] : kNoValue;
}

// y of y / 6 or y * (1/6).
ValueId Sixth(Rewriter& r, const Node& node) {
  if (node.inputs.size() != 2) return kNoValue;
  if (IsPlain(node, "Div")) return Near(r.Scalar(node.inputs[1]), 6) ? node.inputs[0] : kNoValue;
  if (!IsPlain(node, "Mul")) return kNoValue;
  for (const size_t i : {size_t{0}, size_t{1}})
    if (Near(r.Scalar(node.inputs[i]), 1.0 / 6)) return node.inputs[1 - i];
  return kNoValue;
}

// x of x * clip(x + 3, 0, 6), then divided by 6.
ValueId DividedSwish(Rewriter& r, const Node& node) {
  Node* const product = r.SingleUseProducer(Sixth(r, node), "Mul");
  if (!product) return kNoValue;
  for (const size_t i : {size_t{0}, size_t{1}})
    if (const ValueId x = InClip(r, product->inputs[i]); x != kNoValue && x == product->inputs[1 - i])
      return x;
  return kNoValue;
}

struct Found {
  std::string op;
  ValueId x;
};
std::optional<Found> Find(Rewriter& r, const Node& node) {
  if (const ValueId x = DividedSwish(r, node); x != kNoValue) return Found{"HardSwish", x};
  if (const ValueId x = InClip(r, Sixth(r, node)); x != kNoValue) return Found{"HardSigmoid", x};
  if (!IsPlain(node, "Mul") || node.inputs.size() != 2) return std::nullopt;
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const ValueId gate = node.inputs[i], x = node.inputs[1 - i];
    if (Node* const sigmoid = r.SingleUseProducer(gate, "Sigmoid"); sigmoid && sigmoid->inputs[0] == x)
      return Found{"Swish", x};
    if (Node* const hard = r.SingleUseProducer(gate, "HardSigmoid");
        hard && hard->inputs[0] == x && Near(double{hard->Float("alpha", 0.2f)}, 1.0 / 6) &&
        Near(double{hard->Float("beta", 0.5f)}, 0.5))
      return Found{"HardSwish", x};
  }
  return std::nullopt;
}

}  // namespace

Result<int> RecoverSwish(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n)) continue;
    const auto found = Find(r, r.node(n));
    if (!found) continue;
    Node& node = r.node(n);
    explain(node.Label() + " is a " + found->op);
    node.op = found->op;
    node.opset = found->op == "Swish" ? 24 : found->op == "HardSwish" ? 14 : 6;
    node.inputs = {found->x};
    node.attributes.clear();
    if (found->op == "HardSigmoid") node.attributes = {{"alpha", 1.0f / 6}, {"beta", 0.5f}};
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
