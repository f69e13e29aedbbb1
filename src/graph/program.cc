#include "graph/program.h"

#include "graph/operator_table.h"

namespace celer::graph {
namespace {

Status CheckArity(const Node& node, const Operator& op) {
  const auto in = static_cast<int>(node.inputs.size()), out = static_cast<int>(node.outputs.size());
  if (in < op.inputs.least || (op.inputs.most >= 0 && in > op.inputs.most))
    return Error::Corrupt(node.Label(), " has ", in, " inputs; it takes ", op.inputs.least,
                          op.inputs.most < 0                  ? " or more"
                          : op.inputs.most == op.inputs.least ? std::string()
                                                              : " to " + std::to_string(op.inputs.most));
  for (int i = 0; i < op.inputs.least; ++i)
    if (node.inputs[static_cast<size_t>(i)] == kNoValue)
      return Error::Corrupt(node.Label(), ": its input ", i, " is not given, and it must be");
  if (out < op.outputs.least || (op.outputs.most >= 0 && out > op.outputs.most))
    return Error::Corrupt(node.Label(), " has ", out, " outputs; it gives ", op.outputs.least,
                          op.outputs.most < 0                   ? " or more"
                          : op.outputs.most == op.outputs.least ? std::string()
                                                                : " to " + std::to_string(op.outputs.most));
  return {};
}

}  // namespace

Result<std::shared_ptr<const Program>> Program::Make(Network network) {
  std::shared_ptr<Program> program(new Program);
  program->network_ = std::move(network);
  const auto about_file = [&](const Error& error) {
    return program->network_.source.empty() ? error : error.WithContext(program->network_.source);
  };
  if (const Status status = CheckSupported(program->graph()); !status) return about_file(status.error());
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
    CELER_RETURN_IF_ERROR(CheckArity(node, *op));
    compiled->nodes.push_back({&node, op, {}});
    for (const ValueId id : graph.Reads(node))
      compiled->last_use[static_cast<size_t>(id)] = static_cast<int32_t>(n);
    for (const auto& subgraph : node.Subgraphs()) CELER_RETURN_IF_ERROR(Compile(*subgraph));
  }
  for (const ValueId id : graph.outputs)
    compiled->last_use[static_cast<size_t>(id)] = static_cast<int32_t>(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int32_t last = compiled->last_use[v];
    if (graph.values[v].constant || last < 0 || last >= static_cast<int32_t>(graph.nodes.size())) continue;
    compiled->nodes[static_cast<size_t>(last)].dead.push_back(static_cast<ValueId>(v));
  }
  compiled->frame.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].constant) compiled->frame[v] = Data::Of(graph.values[v].constant->view());
  compiled_.emplace(&graph, std::move(compiled));
  return {};
}

}  // namespace celer::graph
