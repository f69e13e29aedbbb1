// Every operator the graph runtime knows, and what to say about those it does not.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ir/ir.h"
#include "graph/ir/operator.h"

namespace celer::graph {

constexpr int kOldestOpset = 6;
constexpr int kNewestOpset = 27;

// Sorted by domain, then name, then the opset they begin with.
std::span<const Operator* const> Operators();

// The row whose meaning a node has; nullptr if there is none.
const Operator* FindOperator(std::string_view domain, std::string_view name, int opset);
inline const Operator* FindOperator(const Node& node) {
  return FindOperator(node.domain, node.op, node.opset);
}

// One sentence about a node with too few or too many inputs or outputs. One that is not known passes.
Status CheckArity(const Node& node);

// One error about all nodes that cannot run, with counts and what to do, subgraphs included.
Status CheckSupported(const Graph& graph);

// docs/operators.md.
std::string OperatorsMarkdown();

}  // namespace celer::graph
