#include "graph/run/program.h"

#include "graph/ir/operator_table.h"

namespace celer::graph {
namespace {

// A file may leave out the name of an output that its operator always makes. Kernels write it all the same,
// so it gets a value.
void AddMissingOutputs(Graph* graph) {
  for (Node& node : graph->nodes) {
    const Operator* const op = FindOperator(node);
    for (size_t i = 0; op && i < node.outputs.size() && static_cast<int>(i) < op->outputs.least; ++i)
      if (node.outputs[i] == kNoValue) node.outputs[i] = graph->AddValue("");
    for (const auto& subgraph : node.Subgraphs()) AddMissingOutputs(subgraph.get());
  }
}

}  // namespace

Result<std::shared_ptr<const Program>> Program::Make(Network network) {
  std::shared_ptr<Program> program(new Program);
  program->network_ = std::move(network);
  const auto about_file = [&](const Error& error) {
    return program->network_.source.empty() ? error : error.WithContext(program->network_.source);
  };
  if (const Status status = CheckSupported(program->graph()); !status) return about_file(status.error());
  AddMissingOutputs(&program->network_.graph);
  if (const Status status = program->Compile(program->graph()); !status) return about_file(status.error());
  return std::shared_ptr<const Program>(std::move(program));
}

Status Program::Compile(const Graph& graph) {
  auto compiled = std::make_unique<CompiledGraph>();
  compiled->graph = &graph;
  compiled->last_use.assign(graph.values.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Operator* const op = FindOperator(node);
    CELER_RETURN_IF_ERROR(CheckArity(node));
    compiled->nodes.push_back({&node, op, {}});
    for (const ValueId id : graph.Reads(node)) compiled->last_use[id] = static_cast<int32_t>(n);
    for (const auto& subgraph : node.Subgraphs()) CELER_RETURN_IF_ERROR(Compile(*subgraph));
  }
  for (const ValueId id : graph.outputs) compiled->last_use[id] = static_cast<int32_t>(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int32_t last = compiled->last_use[v];
    if (graph.values[v].constant || last < 0 || last >= static_cast<int32_t>(graph.nodes.size())) continue;
    compiled->nodes[last].dead.push_back(static_cast<ValueId>(v));
  }
  compiled->frame.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].constant) compiled->frame[v] = Data::Of(graph.values[v].constant->view());
  compiled_.emplace(&graph, std::move(compiled));
  return {};
}

}  // namespace celer::graph
