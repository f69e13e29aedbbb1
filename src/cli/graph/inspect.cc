#include "cli/graph/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/graph/graph.h"
#include "cli/shared/command.h"
#include "device/thread_pool.h"
#include "graph/ir/operator_table.h"
#include "graph/load/load_network.h"
#include "graph/passes/pass.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/table.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

void Count(const graph::Graph& graph, Inspection* out) {
  for (const graph::Node& node : graph.nodes) {
    ++out->nodes;
    ++out->operators[node.domain.empty() ? node.op : node.domain + "." + node.op].nodes;
    for (const auto& subgraph : node.Subgraphs()) Count(*subgraph, out);
  }
  for (const graph::Value& value : graph.values) {
    if (!value.constant) continue;
    out->parameters += *value.constant->shape.elements();
    out->parameter_bytes += static_cast<int64_t>(value.constant->bytes.size());
  }
}

}  // namespace

Result<std::vector<graph::Data>> InputShapes(const graph::Graph& graph,
                                             const std::map<std::string, std::string>& given,
                                             std::vector<std::string>* assumed) {
  std::vector<graph::Data> out;
  for (const graph::ValueId id : graph.inputs) {
    const graph::Value& value = graph.value(id);
    if (value.type.kind != graph::ValueType::Kind::kTensor) {
      out.emplace_back();
      continue;
    }
    std::vector<int64_t> dims;
    if (const auto found = given.find(value.name); found != given.end()) {
      CELER_ASSIGN(dims, ParseDims(found->second));
    } else if (value.type.shape) {
      for (const graph::Dim& dim : *value.type.shape) {
        dims.push_back(dim.fixed() ? dim.size : 1);
        if (!dim.fixed())
          assumed->push_back(Printable(value.name) + "'s " +
                             (dim.symbol.empty() ? "?" : Printable(dim.symbol)));
      }
    }
    CELER_ASSIGN(const Shape shape, graph::MakeShape(dims));
    out.push_back(graph::Data::Of(
        TensorView::Contiguous(nullptr, value.type.dtype.value_or(DType::kF32), Device::Cpu(), shape)));
  }
  return out;
}

namespace {

Result<Inspection> Look(const std::string& path, const std::vector<std::string>& shapes, bool optimize) {
  Inspection out;
  CELER_ASSIGN(const auto file, ResolveModelPath(path));
  CELER_ASSIGN(out.loaded, graph::LoadNetwork(file));
  const Status known = graph::CheckSupported(out.loaded.graph);
  if (known && optimize)
    if (const auto passes = graph::Optimize(&out.loaded.graph); !passes) return passes.error();
  Count(out.loaded.graph, &out);
  std::vector<std::string> names;
  for (const graph::ValueId id : out.loaded.graph.inputs) names.push_back(out.loaded.graph.value(id).name);
  CELER_ASSIGN(const auto given, ByName(shapes, "--shape", names));
  if (!known) {
    out.refusal = known.error().message();
    return out;
  }
  CELER_ASSIGN(out.program, graph::Program::Make(std::move(out.loaded)));
  CELER_ASSIGN(std::vector<graph::Data> inputs, InputShapes(out.program->graph(), given, &out.assumed));
  auto plan =
      graph::PlanMemory(out.program->main(), std::move(inputs), DefaultThreadPool(), out.program->packs());
  if (!plan) {
    if (!given.empty()) return plan.error();
    out.assumed.assign(1, "The shapes of the file do not fit each other with open dimensions of 1 (" +
                              plan.error().message() + "); give --shape.");
    return out;
  }
  const auto& nodes = out.program->main().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const graph::Node& node = *nodes[n].node;
    out.operators[node.domain.empty() ? node.op : node.domain + "." + node.op].flops += plan->node_flops[n];
  }
  out.plan = std::move(*plan);
  return out;
}

}  // namespace

std::vector<std::pair<std::string, OperatorShare>> Sorted(const Inspection& found) {
  std::vector<std::pair<std::string, OperatorShare>> out(found.operators.begin(), found.operators.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.flops != b.second.flops ? a.second.flops > b.second.flops
                                            : a.second.nodes > b.second.nodes;
  });
  return out;
}

namespace {

Json Ports(const graph::Graph& graph, const std::vector<graph::ValueId>& ids) {
  Json out = Json::array();
  for (const graph::ValueId id : ids) {
    const graph::Value& value = graph.value(id);
    Json dims = Json::array();
    if (value.type.shape)
      for (const graph::Dim& dim : *value.type.shape)
        dims.push_back(dim.fixed() ? Json(dim.size) : Json(dim.symbol.empty() ? "?" : Printable(dim.symbol)));
    out.push_back({{"name", Printable(value.name, 1024)},
                   {"dtype", value.type.dtype ? Json(std::string(Name(*value.type.dtype))) : Json()},
                   {"shape", value.type.shape ? dims : Json()}});
  }
  return out;
}

}  // namespace

Json InspectionJson(const std::string& path, const Inspection& found) {
  const graph::Network& network = found.network();
  Json out = {{"path", path},
              {"format", network.format},
              {"opset", network.opset},
              {"producer", network.producer},
              {"bytes", network.file_bytes},
              {"nodes", found.nodes},
              {"parameters", found.parameters},
              {"parameter_bytes", found.parameter_bytes},
              {"inputs", Ports(network.graph, network.graph.inputs)},
              {"outputs", Ports(network.graph, network.graph.outputs)},
              {"can_run", found.refusal.empty()}};
  if (!found.refusal.empty()) out["why_not"] = found.refusal;
  out["operators"] = Json::object();
  for (const auto& [name, share] : Sorted(found))
    out["operators"][Printable(name)] = {{"nodes", share.nodes}, {"flops", share.flops}};
  if (found.plan) {
    out["flops"] = found.plan->flops;
    out["activation_bytes"] = {{"planned", found.plan->arena_bytes},
                               {"live_at_once", found.plan->live_bytes},
                               {"each_its_own", found.plan->naive_bytes}};
  }
  return out;
}

namespace {

void PrintText(const std::string& path, const Inspection& found) {
  const graph::Network& network = found.network();
  const auto line = [](std::string_view name, const std::string& text) {
    fmt::print("  {:<12} {}\n", name, text);
  };
  fmt::print("{}\n", path);
  line("format", fmt::format("{}, opset {}{}", network.format, network.opset,
                             network.producer.empty() ? "" : ", written by " + network.producer));
  line("size", FormatBytes(static_cast<double>(network.file_bytes)));
  line("parameters", fmt::format("{} in {}", FormatParams(static_cast<double>(found.parameters)),
                                 FormatBytes(static_cast<double>(found.parameter_bytes))));
  const auto ports = [&](const char* name, const std::vector<graph::ValueId>& ids,
                         const std::vector<bool>& text) {
    for (size_t i = 0; i < ids.size(); ++i) {
      std::string type = ToString(network.graph.value(ids[i]).type);
      if (i < text.size() && text[i] && type.starts_with("i64")) type.replace(0, 3, "string");
      line(name, Printable(network.graph.value(ids[i]).name) + "  " + type);
    }
  };
  ports("input", network.graph.inputs, network.texts.inputs);
  ports("output", network.graph.outputs, network.texts.outputs);
  if (found.plan) {
    line("flops", fmt::format("{:.3f} G", found.plan->flops / 1e9));
    line("activations", fmt::format("{} ({} are alive at once, {} without sharing)",
                                    FormatBytes(static_cast<double>(found.plan->arena_bytes)),
                                    FormatBytes(static_cast<double>(found.plan->live_bytes)),
                                    FormatBytes(static_cast<double>(found.plan->naive_bytes))));
  }
  Table table;
  table.title = fmt::format("{} nodes", found.nodes);
  table.header = {"operator", "nodes", "flops", "share"};
  for (const auto& [name, share] : Sorted(found))
    table.rows.push_back({Printable(name), std::to_string(share.nodes),
                          found.plan ? fmt::format("{:.1f} M", share.flops / 1e6) : "",
                          found.plan && found.plan->flops > 0
                              ? fmt::format("{:.1f} %", 100 * share.flops / found.plan->flops)
                              : ""});
  fmt::print("{}", TableText(table));
  const auto note = [](const std::string& text) { fmt::print("\n{}\n", Wrap(text, OutputWidth(), 0)); };
  if (!found.assumed.empty())
    note(found.plan ? fmt::format("Taken as 1: {}. --shape NAME=1,3,224,224 says otherwise.",
                                  fmt::join(found.assumed, ", "))
                    : found.assumed[0]);
  if (!found.refusal.empty()) note("Cannot run: " + found.refusal);
}

}  // namespace

int GraphInspectCommand(const std::vector<std::string>& args) {
  CommandLine app("graph inspect", "what a network is made of",
                  "celer graph inspect model.onnx --shape x=1,3,640,640");
  std::string model, svg, html;
  std::vector<std::string> shapes;
  bool json = false, nodes = false, optimized = false;
  app.add_option("MODEL", model, "an ONNX file, NAME.param of PNNX, or a name from celer pull --list")
      ->required();
  app.add_option("--shape", shapes, "NAME=1,3,224,224: the shape of an input, for flops and memory")
      ->allow_extra_args(false);
  app.add_flag("--optimized", optimized, "as it will run: after the passes of celer graph optimize");
  app.add_flag("--nodes", nodes,
               "a line for every node, with what it must move and the least time that takes");
  app.add_option("--svg", svg, "draw the graph into this file");
  app.add_option("--html", html, "write a page with the drawing and all attributes");
  app.add_flag("--json", json, "print JSON");
  if (const auto stop = Parse(app, args)) return *stop;
  const auto found = Look(model, shapes, optimized);
  if (!found) return Fail(found.error());
  if (json)
    fmt::print("{}\n", JsonText(InspectionJson(model, *found), 2));
  else
    PrintText(model, *found);
  if (nodes && !json) fmt::print("{}", TableText(NodesTable(*found)));
  Status written;
  if (!svg.empty()) written = WriteFile(svg, InspectionSvg(model, *found));
  if (written && !html.empty()) written = WriteFile(html, InspectionHtml(model, *found));
  return written ? kOk : Fail(written.error());
}

}  // namespace celer::cli
