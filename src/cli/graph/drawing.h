// A network as a picture: what `celer graph inspect --svg` and `--html` write.
#pragma once

#include <functional>
#include <string>

#include "graph/ir/ir.h"
#include "report/chart.h"

namespace celer::cli {

// What is known of a value when the network runs: "f32[1, 64, 56, 56]"; of a node: its FLOPs, or less than 0.
struct DrawingFacts {
  std::function<std::string(graph::ValueId)> type;
  std::function<double(size_t)> flops;
};

// `anchor`: boxes link to #ANCHOR-0, #ANCHOR-1, ... of a page; empty: to nothing.
Drawing DrawGraph(const graph::Graph& graph, const DrawingFacts& facts, const std::string& anchor);

// The rows that the boxes link to: every node with all its attributes.
Table AttributesTable(const graph::Graph& graph, const DrawingFacts& facts);

}  // namespace celer::cli
