// What the fuzz targets of all formats do with a network that could be read: check it against the operator
// table, plan it for open dimensions of 1, and when it is small enough, run it. For fuzz targets alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "graph/load_onnx.h"
#include "graph/passes/pass.h"
#include "graph/program.h"
#include "graph/session.h"

namespace celer::graph {

// What a run may touch: mutations often ask for gigabytes, and that is no fault.
constexpr int64_t kFuzzMostElements = 1 << 16;

inline bool FuzzIsSmall(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    // A loop may run for ever, as in any language with loops.
    if (!node.Subgraphs().empty()) return false;
    for (const auto& [key, attribute] : node.attributes)
      if (const auto* const number = std::get_if<int64_t>(&attribute);
          number && (*number > 4096 || *number < -4096))
        return false;
  }
  return true;
}

// A Resize is planned with a table as long as its output: one of gigabytes takes minutes, and that is no
// fault.
inline bool FuzzResizesFar(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.op != "Resize" && node.op != "Upsample") continue;
    for (const ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      const auto& constant = graph.value(id).constant;
      if (!constant) continue;
      for (const float number : FloatsOf(*constant))
        if (!(number < 4096)) return true;
      if (constant->dtype != DType::kF32)
        for (const int64_t number : ReadInts(constant->view()))
          if (number > 4096) return true;
    }
  }
  return false;
}

// 0: as it should be; -1: a fault, such as an error without a sentence.
inline int FuzzRun(Network network) {
  if (Print(network.graph).empty()) return -1;
  if (FuzzResizesFar(network.graph)) return 0;
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
    inputs.push_back(std::move(*input));
  }
  static ThreadPool pool(ThreadPool::Options{.threads = 1});
  auto plan = MakePlan((*program)->main(), inputs, pool, (*program)->packs());
  if (!plan) return plan.error().message().empty() ? -1 : 0;
  if (plan->naive_bytes > kFuzzMostElements * 8 || plan->flops > 1e7 || !FuzzIsSmall(main)) return 0;
  for (const PlannedNode& node : plan->nodes)
    if (node.how == PlannedNode::How::kDynamic) return 0;
  Session session(*program, pool);
  const auto outputs = session.Run(std::move(inputs));
  return outputs || !outputs.error().message().empty() ? 0 : -1;
}

}  // namespace celer::graph
