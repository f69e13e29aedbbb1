// What the fuzz targets of all formats do with a network that could be read: check it against the operator
// table, plan it for open dimensions of 1, and when it is small enough, run it; then again as the passes
// leave it. For fuzz targets and tests alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "graph/load/load_network.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {

// What a run may touch and do: mutations often ask for gigabytes, and that is no fault.
constexpr int64_t kFuzzMostElements = 1 << 16;
constexpr uint64_t kFuzzMostBytes = 16 << 20;  // of one tensor
constexpr double kFuzzMostFlops = 1e7;
// A deadline: no network that is this small takes longer, whatever its attributes are. Sanitizers and busy
// machines are slow.
constexpr std::chrono::seconds kFuzzDeadline{20};

// A loop may run for ever, as in any language with loops.
inline bool FuzzLoops(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (!node.Subgraphs().empty()) return true;
  return false;
}

// Fills an input; by default with zeros.
using FuzzFillFn = std::function<void(const TensorView&)>;

// 0: as it should be; -1: a fault, such as an error without a sentence.
inline int FuzzPlanAndRun(Network network, const FuzzFillFn& fill) {
  auto program = Program::Make(std::move(network));
  if (!program) return program.error().message().empty() ? -1 : 0;
  const Graph& main = (*program)->graph();
  std::vector<Data> inputs;
  for (const ValueId id : main.inputs) {
    const ValueType& type = main.value(id).type;
    if (type.kind != ValueType::Kind::kTensor) return 0;
    std::vector<int64_t> dims;
    if (type.shape)
      for (const Dim& dim : *type.shape) dims.push_back(dim.fixed() ? dim.size : 1);
    const auto shape = MakeShape(dims);
    if (!shape || *shape->elements() > kFuzzMostElements) return 0;
    auto input = NewTensor(type.dtype.value_or(DType::kF32), *shape);
    if (!input) return 0;
    if (const auto bytes = static_cast<size_t>(*BytesFor(input->tensor.dtype, *shape->elements())); bytes > 0)
      std::memset(input->tensor.data, 0, bytes);
    if (fill) fill(input->tensor);
    inputs.push_back(std::move(*input));
  }
  static ThreadPool pool(ThreadPool::Options{.threads = 1});
  auto plan = PlanMemory((*program)->main(), inputs, pool, (*program)->packs());
  if (!plan) return plan.error().message().empty() ? -1 : 0;
  if (plan->arena_bytes > static_cast<int64_t>(4 * kFuzzMostBytes) || plan->flops > kFuzzMostFlops ||
      FuzzLoops(main))
    return 0;
  Session session(*program, pool);
  const auto outputs = session.Run(std::move(inputs));
  return outputs || !outputs.error().message().empty() ? 0 : -1;
}

inline int FuzzRun(Network network, const FuzzFillFn& fill = nullptr) {
  if (Print(network.graph).empty()) return -1;
  MaxTensorBytes() = kFuzzMostBytes;
  const auto start = std::chrono::steady_clock::now();
  int result = FuzzPlanAndRun(network, fill);
  for (const bool integers_anyway : {false, true}) {
    Network changed = network;
    const auto reports = Optimize(&changed.graph, {.integers_anyway = integers_anyway});
    if (!reports && reports.error().message().empty()) result = -1;
    if (reports && FuzzPlanAndRun(std::move(changed), fill) != 0) result = -1;
  }
  return std::chrono::steady_clock::now() - start > kFuzzDeadline ? -1 : result;
}

}  // namespace celer::graph
