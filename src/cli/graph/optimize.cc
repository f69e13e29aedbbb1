// celer graph optimize: what the passes make of a network, as a file.
#include <fmt/format.h>

#include <map>

#include "cli/graph/graph.h"
#include "cli/shared/command.h"
#include "graph/load/load_network.h"
#include "graph/load/load_pnnx.h"
#include "graph/load/write_onnx.h"
#include "graph/passes/pass.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/table.h"

namespace celer::cli {
namespace {

struct OptimizeFlags {
  std::string input, output;
  std::vector<std::string> disable;
  bool explain = false, list = false, as_is = false;
};

std::map<std::string, int> CountOperators(const graph::Graph& graph) {
  std::map<std::string, int> out;
  for (const graph::Node& node : graph.nodes)
    ++out[node.domain.empty() ? node.op : node.domain + "." + node.op];
  return out;
}

void PrintPasses() {
  Table table;
  table.title = "Passes, in the order in which they run";
  table.header = {"pass", "what it does"};
  table.last_is_words = true;
  for (const graph::Pass& pass : graph::Passes())
    table.rows.push_back({std::string(pass.name),
                          std::string(pass.about) +
                              (pass.portable ? "" : " (only when celer runs the network, never in a file)")});
  fmt::print("{}", TableText(table).substr(1));
}

void PrintReports(const std::vector<graph::PassReport>& reports, const std::map<std::string, int>& before,
                  const std::map<std::string, int>& after, bool explain) {
  Table table;
  table.title = "Passes";
  table.header = {"pass", "changes", "time"};
  for (const graph::PassReport& report : reports)
    table.rows.push_back(
        {std::string(report.name), std::to_string(report.changes), FormatSeconds(report.seconds)});
  fmt::print("{}", TableText(table).substr(1));
  Table operators;
  operators.title = "Operators whose number changed";
  operators.header = {"operator", "before", "after"};
  std::map<std::string, std::pair<int, int>> both;
  for (const auto& [name, count] : before) both[name].first = count;
  for (const auto& [name, count] : after) both[name].second = count;
  for (const auto& [name, counts] : both)
    if (counts.first != counts.second)
      operators.rows.push_back(
          {Printable(name), std::to_string(counts.first), std::to_string(counts.second)});
  if (!operators.rows.empty()) fmt::print("{}", TableText(operators));
  if (!explain) return;
  for (const graph::PassReport& report : reports) {
    if (report.notes.empty()) continue;
    fmt::print("\n{}\n", report.name);
    for (const std::string& note : report.notes) fmt::print("  {}\n", Wrap(note, OutputWidth(), 4, 2));
  }
}

Status WriteNetwork(const graph::Network& network, const std::string& path) {
  if (std::filesystem::path(path).extension() != ".param") return graph::WriteOnnx(network, path);
  CELER_ASSIGN(const graph::PnnxFile file, graph::ToPnnx(network));
  return graph::WritePnnx(file, path);
}

Status OptimizeGraph(const OptimizeFlags& flags) {
  CELER_ASSIGN(const auto path, ResolveModelPath(flags.input));
  CELER_ASSIGN(graph::Network network, graph::LoadNetwork(path));
  const auto before = CountOperators(network.graph);
  const size_t nodes = network.graph.nodes.size();
  if (!flags.as_is) {
    const graph::OptimizeOptions options{.portable = true, .without = flags.disable};
    const auto reports = graph::Optimize(&network.graph, options);
    if (!reports) return reports.error();
    PrintReports(*reports, before, CountOperators(network.graph), flags.explain);
  }
  CELER_RETURN_IF_ERROR(WriteNetwork(network, flags.output));
  Say("{}: {} nodes{}\n", flags.output, network.graph.nodes.size(),
      flags.as_is ? "" : fmt::format(", {} before", nodes));
  return {};
}

}  // namespace

int GraphOptimizeCommand(const std::vector<std::string>& args) {
  CommandLine app("graph optimize", "rewrite a network into fewer operators, or into the other format",
                  "celer graph optimize model.onnx -o small.onnx --explain");
  OptimizeFlags flags;
  auto* const input = app.add_option("MODEL", flags.input,
                                     "an ONNX file, NAME.param of PNNX, or a name from celer pull --list");
  app.add_option("-o,--output", flags.output,
                 "what to write: NAME.param is PNNX, with its weights in NAME.bin; everything else ONNX");
  app.add_flag("--explain", flags.explain, "say what each pass changed, one line each");
  app.add_option("--disable", flags.disable, "leave this pass out; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--as-is", flags.as_is, "convert only: no pass runs");
  app.add_flag("--list", flags.list, "print the passes and stop");
  if (const auto stop = Parse(app, args)) return *stop;
  if (flags.list) {
    PrintPasses();
    return kOk;
  }
  if (input->count() == 0) return Fail(Error::Invalid("MODEL is missing; name an ONNX or PNNX file"));
  if (flags.output.empty())
    return Fail(Error::Invalid("--output is missing; -o FILE.onnx or -o FILE.param says where to write"));
  if (flags.as_is && (flags.explain || !flags.disable.empty()))
    return Fail(Error::Invalid("--as-is runs no pass, so --explain and --disable mean nothing with it"));
  const Status status = OptimizeGraph(flags);
  return status ? kOk : Fail(status.error());
}

}  // namespace celer::cli
