#include <fmt/format.h>

#include "cli/graph/drawing.h"
#include "cli/graph/inspect.h"
#include "cli/graph/work.h"
#include "io/file/printable.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "limits/roofline.h"
#include "report/page.h"

namespace celer::cli {
namespace {

// Of the main graph with its plan, or of a subgraph, of which less is known.
DrawingFacts FactsOf(const graph::Graph& graph, const Inspection* found) {
  const graph::MemoryPlan* const plan = found && found->plan ? &*found->plan : nullptr;
  return {[&graph, plan](graph::ValueId id) {
            if (plan && plan->frame[id].kind == graph::Data::Kind::kTensor) {
              const TensorView& tensor = plan->frame[id].tensor;
              return std::string(Name(tensor.dtype)) + tensor.shape.ToString();
            }
            return ToString(graph.value(id).type);
          },
          [plan](size_t node) { return plan ? plan->node_flops[node] : -1.0; }};
}

struct ShownGraph {
  std::string title;
  const graph::Graph* graph;
};

void Collect(const graph::Graph& graph, const std::string& title, std::vector<ShownGraph>* out) {
  out->push_back({title, &graph});
  for (const graph::Node& node : graph.nodes)
    for (const auto& [key, value] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<graph::Graph>>(&value))
        Collect(**inner, Printable(key) + " of " + node.Label(), out);
}

Facts GraphFacts(const Inspection& found) {
  const graph::Network& network = found.network();
  Facts facts = {{"format", fmt::format("{}, opset {}{}", network.format, network.opset,
                                        network.producer.empty() ? "" : ", written by " + network.producer)},
                 {"nodes", std::to_string(found.nodes)},
                 {"parameters", fmt::format("{} in {}", FormatParams(static_cast<double>(found.parameters)),
                                            FormatBytes(static_cast<double>(found.parameter_bytes)))}};
  for (const graph::ValueId id : network.graph.inputs)
    facts.emplace_back(
        "input", Printable(network.graph.value(id).name) + "  " + FactsOf(network.graph, &found).type(id));
  for (const graph::ValueId id : network.graph.outputs)
    facts.emplace_back(
        "output", Printable(network.graph.value(id).name) + "  " + FactsOf(network.graph, &found).type(id));
  if (found.plan) {
    facts.emplace_back("work", fmt::format("{:.3f} GFLOP", found.plan->flops / 1e9));
    facts.emplace_back("activations", FormatBytes(static_cast<double>(found.plan->arena_bytes)) + ", " +
                                          FormatBytes(static_cast<double>(found.plan->naive_bytes)) +
                                          " without sharing");
  }
  if (!found.refusal.empty()) facts.emplace_back("cannot run", found.refusal);
  return facts;
}

}  // namespace

Table NodesTable(const Inspection& found) {
  Table table;
  table.title = "Nodes";
  table.header = {"node", "operator", "output", "MFLOP", "MB", "limit", "bound by"};
  table.last_is_words = true;
  table.keys = 2;
  if (!found.plan) {
    table.notes = {"Shapes are not known, so neither is the work."};
    return table;
  }
  const auto machine = LoadOrMeasureThisMachine(false, Device::Cpu());
  const auto roof = machine ? RoofOf(*machine, "f32") : Result<Roof>(machine.error());
  const auto bytes_roof = machine ? RoofOf(*machine, "int8") : Result<Roof>(machine.error());
  const graph::MemoryPlan& plan = *found.plan;
  const auto& nodes = found.program->main().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const graph::Node& node = *nodes[n].node;
    const Work work = NodeWork(nodes[n], plan.nodes[n], plan.node_flops[n], plan.frame);
    const graph::ValueId made = node.outputs.empty() ? graph::kNoValue : node.outputs[0];
    const bool works = roof && work.bytes() > 0;
    const RooflineLimit limit =
        works ? LimitOf(work, bytes_roof && MultipliesBytes(node) ? *bytes_roof : *roof) : RooflineLimit();
    table.rows.push_back({node.name.empty() ? std::to_string(n) : Printable(node.name), Printable(node.op),
                          made == graph::kNoValue ? "" : FactsOf(found.program->graph(), &found).type(made),
                          fmt::format("{:.3f}", work.flops / 1e6), fmt::format("{:.3f}", work.bytes() / 1e6),
                          works ? FormatSeconds(limit.seconds()) : "",
                          !works                 ? ""
                          : limit.memory_bound() ? "memory"
                                                 : "arithmetic"});
  }
  if (!roof) table.notes = {"celer probe measures this machine; then limits stand here, too."};
  return table;
}

std::string InspectionSvg(const std::string& path, const Inspection& found) {
  const graph::Graph& graph = found.network().graph;
  return DrawingSvg(DrawGraph(graph, FactsOf(graph, &found), ""), path);
}

std::string InspectionHtml(const std::string& path, const Inspection& found) {
  std::vector<ShownGraph> pictures;
  const graph::Graph& main = found.network().graph;
  Collect(main, "The graph", &pictures);
  const auto facts_of = [&](const ShownGraph& shown) {
    return FactsOf(*shown.graph, shown.graph == &main ? &found : nullptr);
  };
  Page page("Graph of " + path, path, GraphFacts(found));
  for (size_t i = 0; i < pictures.size(); ++i) {
    page.Section(pictures[i].title);
    page.Add(DrawGraph(*pictures[i].graph, facts_of(pictures[i]), fmt::format("g{}", i)), pictures[i].title,
             true);
    page.Add("Click a box to see its row.");
  }
  for (size_t i = 0; i < pictures.size(); ++i) {
    page.Section(pictures[i].title + ": nodes");
    page.Add(AttributesTable(*pictures[i].graph, facts_of(pictures[i])), fmt::format("g{}", i));
  }
  return page.Html(InspectionJson(path, found));
}

}  // namespace celer::cli
