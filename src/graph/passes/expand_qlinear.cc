// QLinearConv and QLinearMatMul (QOperator form) as float operators between DequantizeLinear and
// QuantizeLinear (QDQ form), which use-integers knows.
#include "graph/load/microsoft/expansion.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

const Constant* InputConstant(const Graph& graph, const Node& node, size_t i) {
  if (i >= node.inputs.size() || node.inputs[i] == kNoValue || !graph.value(node.inputs[i]).constant)
    return nullptr;
  return &*graph.value(node.inputs[i]).constant;
}
bool IsOneNumber(const Graph& graph, const Node& node, size_t i) {
  const Constant* const constant = InputConstant(graph, node, i);
  return constant && constant->shape.elements() == 1;
}
bool IsF32Scale(const Graph& graph, const Node& node, size_t i) {
  const Constant* const constant = InputConstant(graph, node, i);
  return constant && constant->dtype == DType::kF32;
}
// x and y have one scale each, constant as their zero points are.
bool HasPlainEnds(const Graph& graph, const Node& node) {
  for (const size_t scale : {size_t{1}, size_t{4}, size_t{6}})
    if (!IsF32Scale(graph, node, scale)) return false;
  return node.inputs.size() >= 8 && IsOneNumber(graph, node, 1) && IsOneNumber(graph, node, 2) &&
         IsOneNumber(graph, node, 6) && IsOneNumber(graph, node, 7) && node.outputs.size() == 1;
}
bool IsPlainConv(const Graph& graph, const Node& node) {
  const Constant *const weights = InputConstant(graph, node, 3), *const scale = InputConstant(graph, node, 4);
  return HasPlainEnds(graph, node) && weights && scale && scale->shape.rank() <= 1;
}
// One scale for the right side, or one for each column of a matrix.
bool IsPlainMatMul(const Graph& graph, const Node& node) {
  const Constant *const weights = InputConstant(graph, node, 3), *const scale = InputConstant(graph, node, 4);
  return HasPlainEnds(graph, node) && scale &&
         (scale->shape.elements() == 1 ||
          (weights && weights->shape.rank() == 2 && scale->shape.rank() == 1));
}

constexpr ExpansionRow kQLinearRows[] = {
    {"", "QLinearConv", ExpandQLinearConv, 0, IsPlainConv},
    {"", "QLinearMatMul", ExpandQLinearMatMul, 0, IsPlainMatMul},
};

}  // namespace

Result<int> ExpandQLinear(Rewriter& r, const std::function<void(std::string)>& explain) {
  for (size_t n = 0; n < r.nodes(); ++n)
    if (FindExpansion(kQLinearRows, r.graph(), r.node(n))) explain(r.node(n).Label() + " is in QDQ form");
  CELER_ASSIGN(const int changes, ExpandNodes(&r.graph(), kQLinearRows, false));
  if (changes > 0) r.Recount();
  return changes;
}

}  // namespace celer::graph
