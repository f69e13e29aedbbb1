// QuantizeLinear after DequantizeLinear with the same scale and zero point is the identity. Where elements
// are only moved in between, the integers can be moved instead.
#include <algorithm>
#include <cstring>

#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

bool SameConstant(Rewriter& r, const Node& a, const Node& b, size_t input) {
  const auto at = [&](const Node& node) {
    return input < node.inputs.size() ? node.inputs[input] : kNoValue;
  };
  if (at(a) == at(b)) return true;
  const Constant *const x = r.ConstantOf(at(a)), *const y = r.ConstantOf(at(b));
  return x && y && x->dtype == y->dtype && x->shape.elements() == 1 && y->shape.elements() == 1 &&
         std::memcmp(x->bytes.data(), y->bytes.data(), x->bytes.size()) == 0;
}

// One scale for all elements.
bool IsPerTensor(Rewriter& r, const Node& node) {
  const Constant* const scale = r.ConstantOf(node.inputs[1]);
  return scale && scale->shape.elements() == 1;
}

// The element type is that of the zero point.
bool IsInverse(Rewriter& r, const Node& quantize, const Node& dequantize) {
  const bool typed = quantize.inputs.size() > 2 && quantize.inputs[2] != kNoValue;
  return typed && IsPerTensor(r, quantize) && IsPerTensor(r, dequantize) &&
         SameConstant(r, quantize, dequantize, 1) && SameConstant(r, quantize, dequantize, 2);
}

bool OnlyMoves(const Node& node) {
  constexpr std::string_view kMoves[] = {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice"};
  for (const std::string_view move : kMoves)
    if (node.op == move && node.domain.empty()) return true;
  return false;
}

}  // namespace

Result<int> CancelQuantize(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "QuantizeLinear" || !r.node(n).domain.empty()) continue;
    const ValueId x = r.node(n).inputs[0];
    if (Node* const real = r.ProducedBy(x, "DequantizeLinear")) {
      const ValueId output = r.node(n).outputs[0];
      const auto& outputs = r.graph().outputs;
      const bool is_output = std::find(outputs.begin(), outputs.end(), output) != outputs.end();
      if (is_output || !IsInverse(r, r.node(n), *real)) continue;
      explain(r.node(n).Label() + " is the inverse of " + real->Label());
      const ValueId whole = real->inputs[0];
      r.Remove(r.node(n));
      r.Replace(output, whole);
      ++changes;
      continue;
    }
    const int maker = r.ProducerOf(x);
    if (maker < 0 || r.Readers(x) != 1 || !OnlyMoves(r.node(static_cast<size_t>(maker)))) continue;
    Node& move = r.node(static_cast<size_t>(maker));
    Node* const real = r.SingleUseProducer(move.inputs[0], "DequantizeLinear");
    if (!real || !IsInverse(r, r.node(n), *real)) continue;
    explain(move.Label() + " moves integers");
    move.inputs[0] = real->inputs[0];
    move.outputs[0] = r.node(n).outputs[0];
    r.Remove(r.node(n));
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
