// A compiled network: checked against the operator table, with the row of each node and the last use of each
// value. Immutable, so sessions share one.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "graph/ir/operator.h"
#include "graph/load/load_network.h"

namespace celer::graph {

struct CompiledNode {
  const Node* node;
  const Operator* op;
  std::vector<ValueId> dead;  // values that nothing reads after this node
};

struct CompiledGraph {
  const Graph* graph = nullptr;
  std::vector<CompiledNode> nodes;
  std::vector<int32_t>
      last_use;             // by value: the last node that reads it; nodes.size() for outputs, -1 for none
  std::vector<Data> frame;  // by value: the constants
};

class Program {
 public:
  // An error about every node that cannot run.
  static Result<std::shared_ptr<const Program>> Make(Network network);

  const Network& network() const { return network_; }
  const Graph& graph() const { return network_.graph; }
  const CompiledGraph& main() const { return *compiled_.at(&network_.graph); }
  const CompiledGraph& Of(const Graph& subgraph) const { return *compiled_.at(&subgraph); }

  PackCache& packs() const { return packs_; }

 private:
  Program() = default;
  Status Compile(const Graph& graph);

  Network network_;
  mutable PackCache packs_;
  std::unordered_map<const Graph*, std::unique_ptr<CompiledGraph>> compiled_;
};

}  // namespace celer::graph
