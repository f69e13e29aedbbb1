#include <algorithm>

#include "graph/ir/operator.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

bool SameShape(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return false;
  for (size_t i = 0; i < a.shape->size(); ++i)
    if (!(*a.shape)[i].fixed() || (*a.shape)[i].size != (*b.shape)[i].size) return false;
  return true;
}

bool ChangesNothing(Rewriter& r, const Node& node) {
  if (!node.domain.empty() || node.inputs.empty() || node.inputs[0] == kNoValue) return false;
  if (node.outputs.empty() || node.outputs[0] == kNoValue) return false;  // dead, and has no type
  const std::string& op = node.op;
  const ValueType &in = r.graph().value(node.inputs[0]).type, &out = r.graph().value(node.outputs[0]).type;
  if (op == "Identity") return true;
  if (op == "Dropout") {  // with ratio and mode as inputs it may be training
    if (node.outputs.size() > 1 && node.outputs[1] != kNoValue && r.Readers(node.outputs[1]) > 0)
      return false;
    return node.inputs.size() < 3 || node.inputs[2] == kNoValue || r.Scalar(node.inputs[2]) == 0;
  }
  if (op == "Cast") return in.dtype && out.dtype && *in.dtype == *out.dtype;
  if (op == "Concat") return node.inputs.size() == 1;
  if (op == "Transpose") {
    const std::vector<int64_t> order = node.Ints("perm");
    for (size_t i = 0; i < order.size(); ++i)
      if (order[i] != static_cast<int64_t>(i)) return false;
    return !order.empty();
  }
  if (op == "Pad") {
    const Constant* const pads = node.inputs.size() > 1 ? r.ConstantOf(node.inputs[1]) : nullptr;
    if (!pads || pads->dtype != DType::kI64) return false;
    const std::vector<int64_t> numbers = ReadInts(pads->view());
    return std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n == 0; });
  }
  if (op == "Reshape" || op == "Expand" || op == "Flatten" || op == "Squeeze" || op == "Unsqueeze")
    return SameShape(in, out);
  return false;
}

}  // namespace

Result<int> RemoveIdentities(Rewriter& r, const std::function<void(std::string)>& explain) {
  Graph& graph = r.graph();
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || !ChangesNothing(r, r.node(n))) continue;
    const Node node = r.node(n);
    // An output keeps its name, and is neither an input nor a constant.
    const bool output =
        std::find(graph.outputs.begin(), graph.outputs.end(), node.outputs[0]) != graph.outputs.end();
    if (output) continue;
    r.Replace(node.outputs[0], node.inputs[0]);
    r.Remove(r.node(n));
    explain(node.Label() + " changes nothing");
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
