#include "device/thread_pool.h"
#include "graph/ir/call_operator.h"
#include "graph/ir/operator_table.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

// Constant folding. The result stays in memory: no more than a little, or than it was computed from. Weights
// that were stored as integers, and that use-integers left to floats, are the exception: dequantizing them at
// every run, and packing them for a kernel, would cost more than the product.
constexpr int64_t kSmall = 1 << 20;

}  // namespace

Result<int> FoldConstants(Rewriter& r, const std::function<void(std::string)>& explain) {
  Graph& graph = r.graph();
  ThreadPool& pool = DefaultThreadPool();
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {  // in order, so that a chain folds in one pass
    if (r.removed(n)) continue;
    const Node node = r.node(n);
    const Operator* const op = FindOperator(node);
    if (!op || (op->traits & (Operator::kControl | Operator::kRandom | Operator::kSequences)) ||
        !node.Subgraphs().empty())
      continue;
    std::vector<Data> data;
    int64_t from = 0;
    bool known = true;
    for (const ValueId id : node.inputs) {
      const Constant* const constant = r.ConstantOf(id);
      known &= id == kNoValue || constant != nullptr;
      data.push_back(constant ? Data::Of(constant->view()) : Data());
      from += constant ? static_cast<int64_t>(constant->bytes.size()) : 0;
    }
    if (!known) continue;
    std::vector<const Data*> inputs;
    for (size_t i = 0; i < data.size(); ++i)
      inputs.push_back(node.inputs[i] == kNoValue ? nullptr : &data[i]);
    std::vector<InferContext::Output> types(node.outputs.size());
    InferContext infer(node, inputs, types);
    if (!InferOutputs(*op, infer)) continue;  // its error belongs to a run
    int64_t bytes = 0;
    bool all = true;
    for (size_t i = 0; i < types.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      all &= types[i].set;
      if (types[i].set) bytes += *BytesFor(types[i].dtype, *types[i].shape.elements());
    }
    const bool weights = node.op == "DequantizeLinear" && node.domain.empty();
    if (!all || (bytes > kSmall && bytes > from && !weights)) continue;
    std::vector<Data> outputs(node.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i] != kNoValue) {
        CELER_ASSIGN(outputs[i], NewTensor(types[i].dtype, types[i].shape));
      }
    KernelContext run(node, inputs, outputs, pool, nullptr);
    if (!RunKernel(*op, op->reference, run)) continue;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const TensorView& view = outputs[i].tensor;
      Constant constant{view.dtype,
                        view.shape,
                        {static_cast<const std::byte*>(view.data),
                         static_cast<size_t>(*BytesFor(view.dtype, *view.shape.elements()))},
                        outputs[i].owner};
      r.Replace(node.outputs[i], r.AddConstant(graph.value(node.outputs[i]).name, std::move(constant)));
    }
    r.Remove(r.node(n));
    explain(node.Label() + " is folded to a constant");
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
