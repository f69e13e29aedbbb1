#include "cli/graph/check_f16.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "cli/graph/compare.h"
#include "graph/load/load_network.h"
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

// The outputs by the order of the graph, copied.
Result<std::vector<NpyArray>> Run(graph::Network network, const Inputs& inputs, int threads) {
  CELER_ASSIGN(const auto program, graph::Program::Make(std::move(network)));
  std::optional<ThreadPool> own;
  if (threads > 0) own.emplace(ThreadPool::Options{.threads = threads});
  graph::Session session(program, own ? *own : DefaultThreadPool());
  CELER_ASSIGN(const std::vector<graph::Data> results, session.Run(DataOf(program->graph(), inputs)));
  std::vector<NpyArray> out;
  for (const graph::Data& data : results) {
    NpyArray array;
    if (data.kind == graph::Data::Kind::kTensor) {
      array.dtype = data.tensor.dtype;
      array.shape = data.tensor.shape;
      const auto bytes = static_cast<size_t>(*BytesFor(array.dtype, *array.shape.elements()));
      array.bytes.assign(data.tensor.data, data.tensor.data + bytes);
    }
    out.push_back(std::move(array));
  }
  return out;
}

std::span<const float> Floats(const NpyArray& array) {
  return {reinterpret_cast<const float*>(array.bytes.data()), array.bytes.size() / sizeof(float)};
}

// The mean error, as the root of the mean square, relative to the root mean square of the reference.
double RelativeRms(std::span<const float> ours, std::span<const float> theirs) {
  double error = 0, size = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    error += std::pow(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]), 2);
    size += std::pow(static_cast<double>(theirs[i]), 2);
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

// The best classes of a row of scores, the best first.
std::vector<size_t> Best(std::span<const float> scores, size_t count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(count);
  return order;
}

// Of an output that is a row of scores: whether the best classes are the same ones.
std::string SameClasses(const NpyArray& ours, const NpyArray& theirs) {
  constexpr size_t kTop = 5;
  const auto a = Floats(ours), b = Floats(theirs);
  const int rank = theirs.shape.rank();
  if (rank == 0 || a.size() <= kTop || theirs.shape[rank - 1] != static_cast<int64_t>(b.size())) return "";
  std::vector<size_t> x = Best(a, kTop), y = Best(b, kTop);
  const bool first = x[0] == y[0], order = x == y;
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  return fmt::format("{}, {}", first ? "same" : "OTHER",
                     order    ? "same"
                     : x == y ? "same in another order"
                              : "OTHER");
}

}  // namespace

Result<bool> CheckF16(const PrecisionCheck& check) {
  CELER_ASSIGN(const std::filesystem::path file, ResolveModelPath(check.model));
  CELER_ASSIGN(graph::Network network, graph::LoadNetwork(file));
  if (const auto passes = graph::Optimize(&network.graph); !passes) return passes.error();
  graph::Network lowered = network;
  CELER_ASSIGN(const graph::PassReport report, graph::LowerToF16(&lowered.graph));
  const std::vector<GraphPort> ports = graph::InputPorts(network);
  std::vector<std::string> names;
  for (const graph::ValueId id : network.graph.outputs) names.push_back(network.graph.value(id).name);
  CELER_ASSIGN(const Inputs inputs, ReadInputs(ports, check.input, true));
  fmt::print("{}", FactLine("reference", "the network in f32", OutputWidth()));
  fmt::print("{}", FactLine("in f16",
                            fmt::format("{} of {} nodes, {} convolutions and products among them",
                                        report.changes, network.graph.nodes.size(), report.notes.size()),
                            OutputWidth()));
  CELER_ASSIGN(const std::vector<NpyArray> f32, Run(std::move(network), inputs, check.threads));
  CELER_ASSIGN(std::vector<NpyArray> f16, Run(std::move(lowered), inputs, check.threads));

  Table table;
  table.title = "Error of each output in f16";
  table.header = {"output", "shape", "scale", "largest, of the scale", "mean", "top 1, top 5"};
  bool within = true;
  for (size_t i = 0; i < f32.size(); ++i) {
    const TensorView ours =
        TensorView::Contiguous(f16[i].bytes.data(), f16[i].dtype, Device::Cpu(), f16[i].shape);
    const Difference difference = Compare(ours, f32[i]);
    const bool floats = difference.problem.empty() && f32[i].dtype == DType::kF32;
    within = within && difference.error <= check.tolerance;
    table.rows.push_back(
        {Printable(names[i]), std::string(Name(f32[i].dtype)) + f32[i].shape.ToString(),
         fmt::format("{:.3g}", difference.scale),
         difference.problem.empty() ? fmt::format("{:.2g}", difference.error) : difference.problem,
         floats ? fmt::format("{:.2g}", RelativeRms(Floats(f16[i]), Floats(f32[i]))) : "",
         floats ? SameClasses(f16[i], f32[i]) : ""});
  }
  fmt::print("{}", TableText(table));
  return within;
}

}  // namespace celer::cli
