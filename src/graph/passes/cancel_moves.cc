#include "graph/ir/operator.h"
#include "graph/passes/pass.h"

namespace celer::graph {

Result<int> CancelMoves(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || !r.node(n).domain.empty() || r.node(n).inputs.empty()) continue;
    Node& node = r.node(n);
    if (node.op == "Transpose") {
      Node* const before = r.SingleUseProducer(node.inputs[0], "Transpose");
      if (!before) continue;
      const std::vector<int64_t> first = before->Ints("perm"), second = node.Ints("perm");
      if (first.size() != second.size() || first.empty()) continue;
      std::vector<int64_t> both;
      for (const int64_t axis : second) {
        if (axis < 0 || axis >= static_cast<int64_t>(first.size())) break;
        both.push_back(first[axis]);
      }
      if (both.size() != second.size()) continue;
      explain(before->Label() + " and " + node.Label() + " are merged");
      node.inputs[0] = before->inputs[0];
      node.attributes = {{"perm", both}};
      r.Remove(*before);
      ++changes;
    } else if (node.op == "Reshape") {
      Node* const before = r.SingleUseProducer(node.inputs[0], "Reshape");
      const Constant* const shape = node.inputs.size() > 1 ? r.ConstantOf(node.inputs[1]) : nullptr;
      if (!before || !shape) continue;
      bool copies = false;  // a zero takes a size of the input, which is another one then
      for (const int64_t dim : ReadInts(shape->view())) copies |= dim == 0;
      if (copies) continue;
      explain(before->Label() + " is reshaped again by " + node.Label());
      node.inputs[0] = before->inputs[0];
      r.Remove(*before);
      ++changes;
    }
  }
  return changes;
}

}  // namespace celer::graph
