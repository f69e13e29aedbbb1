// GELU is x/2 (1 + erf(x / sqrt 2)). Exporters write it as five nodes, in one of a few orders.
#include <cmath>

#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

bool Near(std::optional<double> a, double b) {
  return a && std::abs(*a - b) < 1e-4 * std::abs(b);
}

// The two factors or terms of a node, one of which is this number: the other one.
ValueId OtherThan(Rewriter& r, const Node& node, double number) {
  if (node.inputs.size() != 2) return kNoValue;
  if (Near(r.Scalar(node.inputs[1]), number)) return node.inputs[0];
  if (Near(r.Scalar(node.inputs[0]), number)) return node.inputs[1];
  return kNoValue;
}

// x of x / sqrt 2.
ValueId Inside(Rewriter& r, ValueId value) {
  if (Node* const div = r.SingleUseProducer(value, "Div"); div && Near(r.Scalar(div->inputs[1]), M_SQRT2))
    return div->inputs[0];
  if (Node* const mul = r.SingleUseProducer(value, "Mul")) return OtherThan(r, *mul, M_SQRT1_2);
  return kNoValue;
}

// x of 1 + erf(x / sqrt 2).
ValueId InSum(Rewriter& r, ValueId value) {
  Node* const add = r.SingleUseProducer(value, "Add");
  Node* const erf = add ? r.SingleUseProducer(OtherThan(r, *add, 1), "Erf") : nullptr;
  return erf ? Inside(r, erf->inputs[0]) : kNoValue;
}

// x of a product that is GELU of x.
ValueId GeluOf(Rewriter& r, const Node& product) {
  if (product.inputs.size() != 2) return kNoValue;
  // (x * sum) * 0.5
  if (Node* const inner = r.SingleUseProducer(OtherThan(r, product, 0.5), "Mul"))
    for (const int i : {0, 1})
      if (const ValueId x = InSum(r, inner->inputs[i]); x != kNoValue && x == inner->inputs[1 - i]) return x;
  for (const int i : {0, 1}) {
    const ValueId one = product.inputs[i], other = product.inputs[1 - i];
    // (x * 0.5) * sum
    if (const ValueId x = InSum(r, one); x != kNoValue)
      if (Node* const half = r.SingleUseProducer(other, "Mul"); half && OtherThan(r, *half, 0.5) == x)
        return x;
    // x * (sum * 0.5)
    if (Node* const half = r.SingleUseProducer(one, "Mul"))
      if (const ValueId x = InSum(r, OtherThan(r, *half, 0.5)); x != kNoValue && x == other) return x;
  }
  return kNoValue;
}

}  // namespace

Result<int> RecoverGelu(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "Mul" || !r.node(n).domain.empty()) continue;
    const ValueId x = GeluOf(r, r.node(n));
    if (x == kNoValue) continue;
    Node& node = r.node(n);
    explain(node.Label() + " is a GELU");
    node.op = "Gelu";
    node.opset = 20;
    node.inputs = {x};
    node.attributes = {{"approximate", std::string("none")}};
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
