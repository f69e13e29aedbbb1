// One opset for all nodes, as an ONNX file has it.
#pragma once

#include "base/result.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// Nodes of the common domain may have opsets of their own: a pass made them, or a function brought them. The
// lowest opset from `at_least` on that knows all of them is chosen, and those that are written otherwise
// there are rewritten: attributes that became inputs, say. An error when one means something else there.
Result<int> UnifyOpsets(Graph* graph, int at_least);

}  // namespace celer::graph
