// celer graph inspect: what a network is made of, without running it.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/run/memory_plan.h"
#include "graph/run/program.h"
#include "report/table.h"

namespace celer::cli {

struct OperatorShare {
  int nodes = 0;
  double flops = 0;
};

struct Inspection {
  graph::Network loaded;                          // what cannot run
  std::shared_ptr<const graph::Program> program;  // what can
  std::map<std::string, OperatorShare> operators;
  int64_t nodes = 0, parameters = 0, parameter_bytes = 0;
  std::string refusal;  // why it cannot run; empty if it can
  std::optional<graph::MemoryPlan> plan;
  std::vector<std::string> assumed;  // dimensions that were taken as 1

  const graph::Network& network() const { return program ? program->network() : loaded; }
};

// Inputs of the shapes that were asked for, by name, or of the file; what is still open is 1, and told in
// `assumed`. They have no data.
Result<std::vector<graph::Data>> InputShapes(const graph::Graph& graph,
                                             const std::map<std::string, std::string>& given,
                                             std::vector<std::string>* assumed);

// The operators with the most work first.
std::vector<std::pair<std::string, OperatorShare>> Sorted(const Inspection& found);
// Every node with its shape, its work and the least time that takes on this machine, if it was measured.
Table NodesTable(const Inspection& found);
nlohmann::ordered_json InspectionJson(const std::string& path, const Inspection& found);
std::string InspectionSvg(const std::string& path, const Inspection& found);
std::string InspectionHtml(const std::string& path, const Inspection& found);  // subgraphs, too

}  // namespace celer::cli
