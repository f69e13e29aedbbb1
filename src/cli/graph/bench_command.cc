#include "cli/graph/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/graph/graph.h"
#include "cli/graph/inputs.h"
#include "cli/graph/work.h"
#include "cli/shared/command.h"
#include "graph/ir/operator_table.h"
#include "graph/load/load_network.h"
#include "graph/passes/pass.h"
#include "graph/run/profile.h"
#include "graph/run/program.h"
#include "graph/run/public_graph.h"
#include "graph/run/session.h"
#include "hub/model_path.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

struct GraphBenchFlags {
  std::string model, html, precision = "f32";
  InputFlags input;
  std::vector<int> threads;
  int repeat = 20, warmup = 3;
  bool no_optimize = false, json = false, nodes = false;
};

Work WholeOf(const graph::Graph& graph, const graph::MemoryPlan& plan) {
  Work work;
  std::vector<bool> read(graph.values.size(), false);
  for (const graph::Node& node : graph.nodes)
    for (const graph::ValueId id : graph.Reads(node)) read[id] = true;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].constant && read[v])
      work.read_bytes += static_cast<double>(graph.values[v].constant->bytes.size());
  for (const graph::ValueId id : graph.inputs) work.read_bytes += TensorBytes(plan.frame[id]);
  for (const graph::ValueId id : graph.outputs) work.write_bytes += TensorBytes(plan.frame[id]);
  work.flops = plan.flops;
  return work;
}

Result<GraphTimes> Measure(const std::shared_ptr<const graph::Program>& program, const Inputs& inputs,
                           const GraphBenchFlags& flags, int threads, double* activation_bytes) {
  ThreadPool pool(ThreadPool::Options{.threads = threads});
  graph::Session session(program, pool);
  const graph::Graph& graph = program->graph();
  GraphTimes out;
  out.threads = pool.size();
  const auto run = [&]() -> Result<double> {
    std::vector<graph::Data> data = DataOf(graph, inputs);
    const auto start = std::chrono::steady_clock::now();
    if (const auto results = session.Run(std::move(data)); !results) return results.error();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int i = 0; i < flags.warmup; ++i) {
    CELER_ASSIGN([[maybe_unused]] const double cold, run());
  }
  for (int i = 0; i < flags.repeat; ++i) {
    CELER_ASSIGN(const double seconds, run());
    out.runs.push_back(seconds);
  }
  std::sort(out.runs.begin(), out.runs.end());
  // Watching costs a little, so the nodes are timed in runs of their own.
  graph::Profile profile(session);
  for (int i = 0; i < flags.repeat; ++i) {
    CELER_ASSIGN([[maybe_unused]] const double watched, run());
  }
  const std::vector<graph::OperatorTime> timed = profile.Times();
  const graph::MemoryPlan& plan = *session.plan();
  const auto& nodes = program->main().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const graph::Node& node = *nodes[n].node;
    const auto& planned = plan.nodes[n];
    const Work work = NodeWork(nodes[n], planned, plan.node_flops[n], plan.frame);
    const bool works =
        planned.how == graph::PlannedNode::How::kPlanned || planned.how == graph::PlannedNode::How::kDynamic;
    if (!works) continue;
    const graph::ValueId first = node.outputs.empty() ? graph::kNoValue : node.outputs[0];
    const graph::Data* const made = first == graph::kNoValue ? nullptr : &plan.frame[first];
    out.nodes.push_back(
        {.op = node.op,
         .kernel = std::string(planned.kernel_name),
         .name = Printable(node.name),
         .shape = made && made->kind == graph::Data::Kind::kTensor ? made->tensor.shape.ToString() : "",
         .seconds = timed[n].Median(),
         .work = work});
  }
  out.whole = WholeOf(graph, plan);
  *activation_bytes = static_cast<double>(plan.arena_bytes);
  CELER_ASSIGN(out.machine, LoadOrMeasureThisMachine(true, Device::Cpu(), out.threads));
  CELER_ASSIGN(out.roof, RoofOf(out.machine, flags.precision));
  return out;
}

// Whether its products are those of bytes: the limit of such a network is that of byte products.
bool IsInteger(const graph::Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), MultipliesBytes);
}

Result<GraphBench> BenchGraph(GraphBenchFlags flags) {
  CELER_ASSIGN(const auto path, ResolveModelPath(flags.model));
  CELER_ASSIGN(graph::Network network, graph::LoadNetwork(path));
  if (const Status supported = graph::CheckSupported(network.graph); !supported)
    return supported.error().WithContext(flags.model);
  if (!flags.no_optimize)
    if (const auto passes = graph::Optimize(&network.graph); !passes) return passes.error();
  if (flags.precision == "f16")
    if (const auto lowered = graph::LowerToF16(&network.graph); !lowered) return lowered.error();
  if (IsInteger(network.graph)) flags.precision = "int8";
  GraphBench out;
  out.precision = flags.precision;
  out.path = flags.model;
  out.optimized = !flags.no_optimize;
  double parameters = 0;
  for (const graph::Value& value : network.graph.values)
    if (value.constant) {
      parameters += static_cast<double>(*value.constant->shape.elements());
      out.weight_bytes += static_cast<double>(value.constant->bytes.size());
    }
  out.network =
      fmt::format("{}, opset {}, {} nodes, {} parameters in {}", network.format, network.opset,
                  network.graph.nodes.size(), FormatParams(parameters), FormatBytes(out.weight_bytes));
  const std::vector<GraphPort> ports = graph::InputPorts(network);
  CELER_ASSIGN(const auto program, graph::Program::Make(std::move(network)));
  CELER_ASSIGN(const Inputs inputs, ReadInputs(ports, flags.input, true));
  for (const GraphPort& port : ports) {
    const NpyArray& array = inputs.arrays.at(port.name);
    out.inputs.push_back(
        fmt::format("{} {}{}", Printable(port.name), Name(array.dtype), array.shape.ToString()));
  }
  for (const int threads : flags.threads.empty() ? std::vector<int>{0} : flags.threads) {
    const int count = threads > 0 ? threads : DefaultThreadPool().size();
    CELER_ASSIGN(GraphTimes times, Measure(program, inputs, flags, count, &out.activation_bytes));
    out.flops = times.whole.flops;
    out.times.push_back(std::move(times));
  }
  return out;
}

}  // namespace

int GraphBenchCommand(const std::vector<std::string>& args) {
  CommandLine app("graph bench", "how long a network takes, beside the least it could take",
                  "celer graph bench model.onnx --shape x=1,3,224,224 --threads 1,2 --html speed.html");
  GraphBenchFlags flags;
  app.add_option("MODEL", flags.model, "an ONNX file, NAME.param of PNNX, or a name from celer pull --list")
      ->required();
  AddInputFlags(app, &flags.input);
  AddShapeFlags(app, &flags.input);
  app.add_option("--threads", flags.threads,
                 "one or several numbers, as in 1,2; 0: as many as there are cores")
      ->delimiter(',')
      ->check(Between(0, 1024));
  app.add_option("--repeat", flags.repeat, "so many timed runs")
      ->check(Between(1, 100000))
      ->capture_default_str();
  app.add_option("--warmup", flags.warmup, "so many runs before them")
      ->check(Between(0, 1000))
      ->capture_default_str();
  app.add_flag("--nodes", flags.nodes, "also a table of the slowest nodes");
  AddPrecisionFlag(app, &flags.precision);
  app.add_flag("--no-optimize", flags.no_optimize, "run the nodes as they stand in the file");
  app.add_option("--html", flags.html, "write a page with the operators on the roofline");
  app.add_flag("--json", flags.json, "every number, as JSON");
  if (const auto stop = Parse(app, args)) return *stop;
  const auto bench = BenchGraph(flags);
  if (!bench) return Fail(bench.error());
  if (flags.json) {
    fmt::print("{}\n", JsonText(GraphBenchJson(*bench), 2));
  } else {
    for (const auto& [name, value] : GraphBenchFacts(*bench))
      fmt::print("{}", FactLine(name, value, OutputWidth()));
    fmt::print("{}", TableText(SpeedTable(*bench)));
    for (const GraphTimes& times : bench->times) {
      fmt::print("{}", TableText(OperatorTable(times)));
      if (flags.nodes) fmt::print("{}", TableText(NodeTable(times, 30)));
    }
  }
  if (flags.html.empty()) return kOk;
  const Status written = WriteFile(flags.html, GraphBenchHtml(*bench));
  return written ? kOk : Fail(written.error());
}

}  // namespace celer::cli
