// One opset for all nodes, as an ONNX file has it.
#pragma once

#include "base/result.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// Nodes of the common domain may have opsets of their own: a pass made them, or a function brought them. The
// lowest opset from `at_least` on that knows all of them is chosen, and nodes whose form changed are
// converted: attributes that became inputs, say. An error when the semantics differ there.
Result<int> UnifyOpsets(Graph* graph, int at_least);

}  // namespace celer::graph
