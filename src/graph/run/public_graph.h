// What the public interface calls an input or output of a network.
#pragma once

#include "celer/graph.h"
#include "graph/load/load_network.h"

namespace celer::graph {

std::vector<GraphPort> InputPorts(const Network& network);
std::vector<GraphPort> OutputPorts(const Network& network);

}  // namespace celer::graph
