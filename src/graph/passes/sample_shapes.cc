// Shapes of all values, by inference with representative sizes for those that a file leaves open.
#include <map>

#include "device/thread_pool.h"
#include "graph/ir/call_operator.h"
#include "graph/ir/operator_table.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

constexpr int64_t kFoldBytes = 16 << 10;  // shapes and indices are computed, weights are not

// Open sizes: different ones where names differ, and multiples of 32, which networks of images like.
std::optional<Shape> SampleInput(const ValueType& type, int64_t batch,
                                 std::map<std::string, int64_t>& sizes) {
  if (!type.shape || !type.dtype || type.kind != ValueType::Kind::kTensor) return std::nullopt;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < type.shape->size(); ++i) {
    const Dim& dim = (*type.shape)[i];
    if (dim.fixed()) {
      dims.push_back(dim.size);
      continue;
    }
    const std::string name = dim.symbol.empty() ? "dimension " + std::to_string(sizes.size()) : dim.symbol;
    const int64_t other = 64 + 32 * static_cast<int64_t>(sizes.size());
    dims.push_back(sizes.try_emplace(name, i == 0 ? batch : other).first->second);
  }
  auto shape = MakeShape(dims);
  return shape ? std::optional(*shape) : std::nullopt;
}

class Walker {
 public:
  Walker(const Graph& graph, int64_t batch) : graph_(graph), data_(graph.values.size()) {
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (graph.values[v].constant) {
        data_[v] = Data::Of(graph.values[v].constant->view());
        ready_.push_back(true);
      } else {
        ready_.push_back(false);
      }
    std::map<std::string, int64_t> sizes;
    for (const ValueId id : graph.inputs) {
      const ValueType& type = graph.value(id).type;
      if (const auto shape = SampleInput(type, batch, sizes)) Set(id, *type.dtype, *shape);
    }
    for (const Node& node : graph.nodes) Visit(node);
  }

  // Returns how many it knows.
  size_t Fill(SampleShapes* out) const {
    size_t count = 0;
    out->of.assign(data_.size(), std::nullopt);
    out->types.assign(data_.size(), std::nullopt);
    for (size_t v = 0; v < data_.size(); ++v)
      if (ready_[v] && data_[v].kind == Data::Kind::kTensor) {
        out->of[v] = data_[v].tensor.shape;
        out->types[v] = data_[v].tensor.dtype;
        ++count;
      }
    return count;
  }

 private:
  void Set(ValueId id, DType dtype, const Shape& shape) {
    const auto v = static_cast<size_t>(id);
    data_[v] = Data::Of(TensorView::Contiguous(nullptr, dtype, Device::Cpu(), shape));
    data_[v].known = false;
    ready_[v] = true;
  }

  void Visit(const Node& node) {
    const Operator* const op = FindOperator(node);
    if (!op || (op->traits & (Operator::kControl | Operator::kSequences))) return;
    std::vector<const Data*> in;
    bool known = true;
    for (const ValueId id : node.inputs) {
      if (id != kNoValue && !ready_[id]) return;
      in.push_back(id == kNoValue ? nullptr : &data_[id]);
      known = known && (!in.back() || in.back()->known);
    }
    std::vector<InferContext::Output> types(node.outputs.size());
    InferContext infer(node, in, types);
    if (!InferOutputs(*op, infer)) return;
    int64_t bytes = 0;
    for (size_t i = 0; i < types.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      if (!types[i].set) return;
      bytes += *BytesFor(types[i].dtype, *types[i].shape.elements());
    }
    known = (known || (op->traits & Operator::kShapeOnly)) && bytes <= kFoldBytes &&
            !(op->traits & Operator::kRandom);
    for (size_t i = 0; i < types.size(); ++i)
      if (node.outputs[i] != kNoValue) Set(node.outputs[i], types[i].dtype, types[i].shape);
    if (known) Compute(node, *op, in, types);
  }

  void Compute(const Node& node, const Operator& op, std::span<const Data* const> in,
               std::span<const InferContext::Output> types) {
    std::vector<Data> out(types.size());
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      auto tensor = NewTensor(types[i].dtype, types[i].shape);
      if (!tensor) return;
      out[i] = std::move(*tensor);
    }
    ThreadPool one(ThreadPool::Options{.threads = 1});
    KernelContext run(node, in, out, one, nullptr);
    if (!RunKernel(op, op.reference, run)) return;
    for (size_t i = 0; i < out.size(); ++i)
      if (node.outputs[i] != kNoValue) data_[node.outputs[i]] = std::move(out[i]);
  }

  const Graph& graph_;
  std::vector<Data> data_;
  std::vector<bool> ready_;
};

}  // namespace

SampleShapes SampleShapesOf(const Graph& graph) {
  SampleShapes out{.of = {}, .types = {}, .exact = true, .exact_ranks = true};
  for (const ValueId id : graph.inputs) {
    const auto& shape = graph.value(id).type.shape;
    out.exact = out.exact && shape;
    for (size_t i = 0; shape && i < shape->size(); ++i) out.exact = out.exact && (*shape)[i].fixed();
  }
  for (const Node& node : graph.nodes)
    if (node.op == "Squeeze" && node.inputs.size() < 2 && !node.Find("axes")) out.exact_ranks = out.exact;
  // Two images are more telling than one, but not every network takes two.
  const size_t two = Walker(graph, 2).Fill(&out);
  if (out.exact) return out;
  SampleShapes of_one = out;
  const size_t one = Walker(graph, 1).Fill(&of_one);
  return one > two ? of_one : out;
}

}  // namespace celer::graph
