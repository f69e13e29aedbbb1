#include "cli/graph/work.h"

namespace celer::cli {

bool MultipliesBytes(const graph::Node& node) {
  return node.op == "IntegerConv" || node.op == "IntegerMatMul" || node.op == "DynamicMatMul";
}

double TensorBytes(const graph::Data& data) {
  if (data.kind != graph::Data::Kind::kTensor) return 0;
  return static_cast<double>(
      BytesFor(data.tensor.dtype, data.tensor.shape.elements().value_or(0)).value_or(0));
}

Work NodeWork(const graph::CompiledNode& compiled, const graph::PlannedNode& planned, double flops,
              const std::vector<graph::Data>& frame) {
  using How = graph::PlannedNode::How;
  Work work;
  if (planned.how == How::kView || planned.how == How::kFolded) return work;
  const graph::Node& node = *compiled.node;
  for (const graph::ValueId id : node.outputs)
    if (id != graph::kNoValue) work.write_bytes += TensorBytes(frame[id]);
  const bool picks = node.op.starts_with("Gather") || node.op == "Slice" || node.op == "Split";
  if (!(compiled.op->traits & graph::Operator::kShapeOnly)) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == graph::kNoValue || (picks && i == 0)) continue;
      work.read_bytes += TensorBytes(frame[node.inputs[i]]);
    }
    if (picks) work.read_bytes += work.write_bytes;
  }
  work.flops = flops;
  return work;
}

}  // namespace celer::cli
