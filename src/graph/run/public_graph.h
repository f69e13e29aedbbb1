// What the public interface calls an input or output of a network.
#pragma once

#include "celer/graph.h"
#include "graph/ir/operator.h"
#include "graph/load/load_network.h"

namespace celer::graph {

std::vector<GraphPort> InputPorts(const Network& network);
std::vector<GraphPort> OutputPorts(const Network& network);

// A view of the tensor for the input `name` where its bytes can be read as they are, else a copy. An error if they do not fit
// its type and shape.
Result<Data> ToData(const std::string& name, const GraphTensor& tensor);

}  // namespace celer::graph
