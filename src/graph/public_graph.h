// What the public interface calls an input or output of a network.
#pragma once

#include "celer/graph.h"
#include "graph/ir.h"

namespace celer::graph {

GraphPort PortOf(const Graph& graph, ValueId id);

}  // namespace celer::graph
