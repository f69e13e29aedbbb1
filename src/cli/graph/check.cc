// celer graph check: a network's values beside those of ONNX Runtime, node by node; or in f16 beside f32.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/graph/check_f16.h"
#include "cli/graph/compare.h"
#include "cli/graph/graph.h"
#include "cli/graph/inputs.h"
#include "cli/graph/reference.h"
#include "cli/shared/command.h"
#include "graph/load/load_network.h"
#include "graph/load/load_onnx.h"
#include "graph/load/write_onnx.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/public_graph.h"
#include "graph/run/session.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "report/output.h"
#include "report/table.h"

namespace celer::cli {
namespace {

struct GraphCheckFlags {
  std::string model, python, precision = "f32";
  InputFlags input;
  std::vector<std::string> disable;
  double tolerance = 1e-4;
  int threads = 0;
  bool against_ort = false, every = false;
};

struct Compared {
  std::string node, value, shape;
  Difference difference;
  Shape dims;
};

// One run of the network, and how it compares.
struct Outcome {
  std::vector<Compared> outputs;
  size_t values = 0;              // compared, inside the network
  std::optional<Compared> first;  // beyond the tolerance
  Compared worst;
};

Result<Outcome> RunAndCompare(graph::Network network, const Inputs& inputs, const ReferenceRun& reference,
                              const GraphCheckFlags& flags) {
  CELER_ASSIGN(const auto program, graph::Program::Make(std::move(network)));
  std::optional<ThreadPool> own;
  if (flags.threads > 0) own.emplace(ThreadPool::Options{.threads = flags.threads});
  graph::Session session(program, own ? *own : DefaultThreadPool());
  Outcome out;
  Status broken;
  const graph::Graph& graph = program->graph();
  const auto compare = [&](const graph::Data& data, const std::string& name) -> std::optional<Compared> {
    if (data.kind != graph::Data::Kind::kTensor || !data.known) return std::nullopt;
    const auto theirs = reference.Find(name);
    if (!theirs) {
      if (broken) broken = theirs.error();
      return std::nullopt;
    }
    if (!*theirs) return std::nullopt;
    return Compared{.node = {},
                    .value = name,
                    .shape = std::string(Name(data.tensor.dtype)) + data.tensor.shape.ToString(),
                    .difference = Compare(data.tensor, **theirs),
                    .dims = data.tensor.shape};
  };
  session.Observe([&](const graph::Node& node, const std::vector<const graph::Data*>& made, double) {
    for (size_t i = 0; i < made.size(); ++i) {
      if (!made[i] || node.outputs[i] == graph::kNoValue) continue;
      auto found = compare(*made[i], graph.value(node.outputs[i]).name);
      if (!found) continue;
      ++out.values;
      found->node = node.Label();
      if (flags.every) fmt::print("  {:.2e}  {}  {}\n", found->difference.error, found->shape, found->node);
      if (out.values == 1 || found->difference.error > out.worst.difference.error) out.worst = *found;
      if (!out.first && !(found->difference.error <= flags.tolerance)) out.first = std::move(found);
    }
  });
  CELER_ASSIGN(const std::vector<graph::Data> results, session.Run(DataOf(graph, inputs)));
  CELER_RETURN_IF_ERROR(broken);
  for (size_t i = 0; i < results.size(); ++i)
    if (auto found = compare(results[i], graph.value(graph.outputs[i]).name)) {
      if (!out.first && !(found->difference.error <= flags.tolerance)) {
        out.first = *found;
        out.first->node = "the output";
      }
      out.outputs.push_back(std::move(*found));
    }
  return out;
}

// The outputs of all nodes, as ONNX Runtime knows them.
std::vector<std::string> InnerValues(const graph::Graph& graph) {
  std::set<std::string> ports, names;
  for (const graph::ValueId id : graph.outputs) ports.insert(graph.value(id).name);
  std::vector<std::string> out;
  for (const graph::Node& node : graph.nodes)
    for (const graph::ValueId id : node.outputs) {
      if (id == graph::kNoValue) continue;
      const std::string& name = graph.value(id).name;
      // Values inside a function that was expanded have names that we made ("call#7/x").
      if (!ports.contains(name) && name.find('#') == std::string::npos && names.insert(name).second)
        out.push_back(name);
    }
  return out;
}

void Print(const char* which, const Outcome& outcome) {
  std::string text;
  if (outcome.first)
    text = fmt::format("differs first at {}, value '{}' {}: {}", outcome.first->node,
                       Printable(outcome.first->value), outcome.first->shape,
                       Describe(outcome.first->difference, outcome.first->dims));
  else if (outcome.values > 0)
    text = fmt::format("equal; {} values compared, the largest error is {:.2g} at {}", outcome.values,
                       outcome.worst.difference.error, outcome.worst.node);
  else
    text = "equal; only outputs compared";
  fmt::print("{}", FactLine(which, text, OutputWidth()));
}

// How far ONNX Runtime's optimised output is from its plain one.
Result<std::optional<Difference>> OwnSpread(const ReferenceRun& reference, const std::string& name) {
  CELER_ASSIGN(std::optional<NpyArray> optimized, reference.FindOptimized(name));
  CELER_ASSIGN(const std::optional<NpyArray> plain, reference.Find(name));
  if (!optimized || !plain) return std::optional<Difference>();
  return std::optional(Compare(
      TensorView::Contiguous(optimized->bytes.data(), optimized->dtype, Device::Cpu(), optimized->shape),
      *plain));
}

// Prints, and says whether all outputs are equal.
Result<bool> CheckGraph(const GraphCheckFlags& flags) {
  CELER_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  CELER_ASSIGN(std::filesystem::path file, ResolveModelPath(flags.model));
  CELER_ASSIGN(graph::Network network, graph::LoadNetwork(file));
  CELER_ASSIGN(const ReferencePython python, FindReference(flags.python));
  const bool converted = network.format != "ONNX";
  if (converted) {
    file = folder.path() / "network.onnx";
    CELER_RETURN_IF_ERROR(graph::WriteOnnx(network, file));
    CELER_ASSIGN(network, graph::LoadOnnx(file));
  }
  const std::vector<GraphPort> ports = graph::InputPorts(network);
  std::vector<std::string> names;
  for (const GraphPort& port : ports) names.push_back(port.name);
  CELER_ASSIGN(const Inputs inputs, ReadInputs(ports, flags.input, true));
  CELER_ASSIGN(const ReferenceRun reference,
               ReferenceRun::Run(python, file, names, inputs, InnerValues(network.graph),
                                 graph::OutputPorts(network), folder.path()));
  fmt::print("{}", FactLine("reference",
                            fmt::format("ONNX Runtime {}{}", python.version,
                                        converted ? ", on the network as ONNX" : ""),
                            OutputWidth()));
  for (const GraphPort& port : ports) {
    const NpyArray& array = inputs.arrays.at(port.name);
    const bool random = std::find(inputs.random_inputs.begin(), inputs.random_inputs.end(), port.name) !=
                        inputs.random_inputs.end();
    fmt::print("{}", FactLine("input",
                              fmt::format("{}  {}{}{}", Printable(port.name), Name(array.dtype),
                                          array.shape.ToString(), random ? ", random" : ""),
                              OutputWidth()));
  }
  if (!reference.note().empty())
    fmt::print("{}\n",
               FactLine("note", "ONNX Runtime gives only the outputs: " + reference.note(), OutputWidth()));

  // The graph is copied; its constants view the same file.
  graph::Network optimized = network;
  if (const auto passes = graph::Optimize(&optimized.graph, {.without = flags.disable}); !passes)
    return passes.error();
  CELER_ASSIGN(const Outcome plain, RunAndCompare(std::move(network), inputs, reference, flags));
  Print("as written", plain);
  CELER_ASSIGN(const Outcome fast, RunAndCompare(std::move(optimized), inputs, reference, flags));
  Print("optimised", fast);

  Table table;
  table.title = "Largest error of each output, relative to its scale";
  table.header = {"output", "shape", "scale", "as written", "optimised", "ONNX Runtime optimised"};
  const auto shown = [](const Difference& d) {
    return d.problem.empty() ? fmt::format("{:.2g}", d.error) : d.problem;
  };
  // A node inside may differ where its values cancel; what counts is what comes out.
  bool equal = true, unsteady = true;
  for (size_t i = 0; i < plain.outputs.size() && i < fast.outputs.size(); ++i) {
    const Difference &a = plain.outputs[i].difference, &b = fast.outputs[i].difference;
    CELER_ASSIGN(const auto own, OwnSpread(reference, plain.outputs[i].value));
    table.rows.push_back({Printable(plain.outputs[i].value), plain.outputs[i].shape,
                          fmt::format("{:.3g}", a.scale), shown(a), shown(b), own ? shown(*own) : "-"});
    const bool near = a.error <= flags.tolerance && b.error <= flags.tolerance;
    equal = equal && near;
    unsteady = unsteady && (near || (own && own->error > flags.tolerance));
  }
  fmt::print("{}", TableText(table));
  if (!equal && unsteady)
    fmt::print("{}", FactLine("note",
                              "ONNX Runtime's optimised run differs from its plain one by more than the "
                              "tolerance, too: this network magnifies rounding",
                              OutputWidth()));
  return equal;
}

}  // namespace

int GraphCheckCommand(const std::vector<std::string>& args) {
  CommandLine app("graph check", "compare a network's values with those of ONNX Runtime",
                  "celer graph check model.onnx --against-ort --shape x=1,3,320,320");
  GraphCheckFlags flags;
  app.add_option("MODEL", flags.model, "an ONNX file, NAME.param of PNNX, or a name from celer pull --list")
      ->required();
  app.add_flag("--against-ort", flags.against_ort, "with ONNX Runtime, the one reference there is");
  AddInputFlags(app, &flags.input);
  AddShapeFlags(app, &flags.input);
  app.add_option("--tolerance", flags.tolerance,
                 "the largest error, relative to the scale of a value; with --precision f16 it is 0.02")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--disable", flags.disable, "leave this pass out of the optimised run")
      ->allow_extra_args(false);
  app.add_flag("--every", flags.every, "print the error of every node");
  app.add_option("--python", flags.python,
                 "the Python that has ONNX Runtime; else that of $VIRTUAL_ENV, of .venv, or python3");
  app.add_option("--threads", flags.threads, "0: as many as there are cores")
      ->check(Between(0, 1024))
      ->capture_default_str();
  AddPrecisionFlag(app, &flags.precision);
  if (const auto stop = Parse(app, args)) return *stop;
  if (flags.precision == "f16" && flags.against_ort)
    return Fail(
        Error::Invalid("--precision f16 is compared with f32 here, not with ONNX Runtime; leave one of "
                       "--precision f16 and --against-ort away"));
  const double tolerance = app.count("--tolerance") > 0 ? flags.tolerance : PrecisionCheck().tolerance;
  const auto equal = flags.precision == "f16" ? CheckF16({flags.model, flags.input, tolerance, flags.threads})
                                              : CheckGraph(flags);
  if (!equal) return Fail(equal.error());
  return *equal ? kOk : kFailed;
}

}  // namespace celer::cli
