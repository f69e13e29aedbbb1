// Any bytes as an ONNX model: loaded, checked against the operator table, planned for open dimensions of 1,
// and when it is small enough, run.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "graph/load_onnx.h"
#include "graph/program.h"
#include "graph/session.h"

namespace {

// What a run may touch: mutations often ask for gigabytes, and that is no fault.
constexpr int64_t kMaxElements = 1 << 16;

bool Small(const celer::graph::Graph& graph) {
  for (const celer::graph::Node& node : graph.nodes) {
    // A loop may run for ever, as in any language with loops.
    if (!node.Subgraphs().empty()) return false;
    for (const auto& [key, attribute] : node.attributes)
      if (const auto* const number = std::get_if<int64_t>(&attribute);
          number && (*number > 4096 || *number < -4096))
        return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  auto network = graph::LoadOnnx(std::as_bytes(std::span(data, size)), "fuzz");
  if (!network) return network.error().message().empty() ? -1 : 0;
  if (graph::Print(network->graph).empty()) return -1;
  auto program = graph::Program::Make(std::move(*network));
  if (!program) return program.error().message().empty() ? -1 : 0;
  const graph::Graph& main = (*program)->graph();
  std::vector<graph::Data> inputs;
  for (const graph::ValueId id : main.inputs) {
    const graph::ValueType& type = main.value(id).type;
    if (type.kind != graph::ValueType::Kind::kTensor) return 0;
    std::vector<int64_t> dims;
    if (type.shape)
      for (const graph::Dim& dim : *type.shape) dims.push_back(dim.fixed() ? dim.size : 1);
    const auto shape = graph::MakeShape(dims);
    if (!shape || *shape->elements() > kMaxElements) return 0;
    auto input = graph::NewTensor(type.dtype.value_or(DType::kF32), *shape);
    if (!input) return 0;
    if (const auto bytes = static_cast<size_t>(*BytesFor(input->tensor.dtype, *shape->elements())); bytes > 0)
      std::memset(input->tensor.data, 0, bytes);
    inputs.push_back(std::move(*input));
  }
  static ThreadPool pool(ThreadPool::Options{.threads = 1});
  auto plan = graph::MakePlan((*program)->main(), inputs, pool, (*program)->packs());
  if (!plan) return plan.error().message().empty() ? -1 : 0;
  if (plan->naive_bytes > kMaxElements * 8 || plan->flops > 1e7 || !Small(main)) return 0;
  for (const graph::PlannedNode& node : plan->nodes)
    if (node.how == graph::PlannedNode::How::kDynamic) return 0;
  graph::Session session(*program, pool);
  const auto outputs = session.Run(std::move(inputs));
  return outputs || !outputs.error().message().empty() ? 0 : -1;
}
