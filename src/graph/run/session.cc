#include "graph/run/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "device/allocator.h"
#include "graph/ir/call_operator.h"
#include "io/file/printable.h"

namespace celer::graph {
namespace {

// An LRU cache of plans, each a few hundred bytes per value: shapes that come back find theirs.
constexpr size_t kMaxPlans = 8;

Result<Data> Copied(const Data& data) {
  CELER_ASSIGN(Data copy, NewTensor(data.tensor.dtype, data.tensor.shape));
  const auto bytes = static_cast<size_t>(*BytesFor(copy.tensor.dtype, *copy.tensor.shape.elements()));
  if (bytes > 0) std::memcpy(copy.tensor.data, data.tensor.data, bytes);
  return copy;
}

// Runs nodes with data-dependent shapes.
class Frame final : public SubgraphRunner {
 public:
  Frame(const Program& program, const CompiledGraph& graph, std::vector<Data>& values, ThreadPool& pool)
      : program_(program), values_(values), pool_(pool) {
    constant_.reserve(graph.graph->values.size());
    for (const Value& value : graph.graph->values) constant_.push_back(value.constant.has_value());
  }

  Status RunNode(const CompiledNode& compiled) {
    const Node& node = *compiled.node;
    std::vector<const Data*> in;
    in.reserve(node.inputs.size());
    for (const ValueId id : node.inputs) in.push_back(id == kNoValue ? nullptr : &values_[id]);
    std::vector<InferContext::Output> types(node.outputs.size());
    InferContext infer(node, in, types);
    CELER_RETURN_IF_ERROR(InferOutputs(*compiled.op, infer));
    std::vector<Data> out(node.outputs.size());
    if ((compiled.op->traits & Operator::kView) && types[0].set && in[0]->owner) {
      out[0] = *in[0];
      out[0].tensor =
          TensorView::Contiguous(in[0]->tensor.data, types[0].dtype, Device::Cpu(), types[0].shape);
    } else {
      for (size_t i = 0; i < out.size(); ++i)
        if (types[i].set && node.outputs[i] != kNoValue) {
          CELER_ASSIGN(out[i], NewTensor(types[i].dtype, types[i].shape));
        }
      KernelContext run(node, in, out, pool_, this);
      const FastKernel* const fast = ChooseKernel(*compiled.op, infer);
      Prepared prepared;
      PackCache own;
      if (fast && fast->prepare)
        prepared = fast->prepare(infer, pool_.size(), PacksStay(node) ? program_.packs() : own);
      AlignedVector<std::byte> workspace(static_cast<size_t>(prepared.workspace_bytes));
      run.state = prepared.state.get();
      run.workspace = workspace.data();
      CELER_RETURN_IF_ERROR(RunKernel(*compiled.op, fast ? fast->run : compiled.op->reference, run));
    }
    for (size_t i = 0; i < out.size(); ++i)
      if (node.outputs[i] != kNoValue) values_[node.outputs[i]] = std::move(out[i]);
    return {};
  }

  Result<std::vector<Data>> Run(const Graph& subgraph, std::vector<Data> inputs) override {
    const CompiledGraph& inner = program_.Of(subgraph);
    if (inputs.size() != subgraph.inputs.size())
      return Error::Corrupt("its subgraph has ", subgraph.inputs.size(), " inputs, and gets ", inputs.size());
    std::vector<Data> values = inner.frame;
    for (size_t i = 0; i < inputs.size(); ++i) values[subgraph.inputs[i]] = std::move(inputs[i]);
    for (const Capture& capture : subgraph.captures) values[capture.inner] = values_[capture.outer];
    Frame frame(program_, inner, values, pool_);
    for (const Capture& capture : subgraph.captures)
      frame.constant_[capture.inner] = constant_[capture.outer];
    for (const CompiledNode& node : inner.nodes) {
      if (const Status status = frame.RunNode(node); !status)
        return status.error().WithContext(node.node->Label());
      for (const ValueId id : node.dead) values[id] = {};
    }
    std::vector<Data> out;
    for (const ValueId id : subgraph.outputs) {
      out.push_back(values[id]);
      if (out.back().kind == Data::Kind::kTensor && !out.back().owner) {
        CELER_ASSIGN(out.back(), Copied(out.back()));
      }
    }
    return out;
  }

 private:
  // Kernels pack inputs 1 and 2 if they know them, and here they know all. Only packed constants serve the
  // next run: the memory of another value will hold something else.
  bool PacksStay(const Node& node) const {
    for (size_t i = 1; i < std::min<size_t>(node.inputs.size(), 3); ++i)
      if (node.inputs[i] != kNoValue && !constant_[node.inputs[i]]) return false;
    return true;
  }

  const Program& program_;
  std::vector<Data>& values_;
  std::vector<bool> constant_;  // by value
  ThreadPool& pool_;
};

Status CheckInput(const Value& value, const Data& data) {
  const std::string where = "the input '" + Printable(value.name) + "'";
  if (data.kind != Data::Kind::kTensor) {
    if (value.type.kind == ValueType::Kind::kTensor)
      return Error::Invalid(where, " is ", ToString(value.type), ", and no tensor is given");
    return {};
  }
  if (value.type.kind == ValueType::Kind::kSequence)
    return Error::Invalid(where, " is a sequence, and a tensor is given");
  if (value.type.dtype && *value.type.dtype != data.tensor.dtype)
    return Error::Invalid(where, " is ", Name(*value.type.dtype), ", and ", Name(data.tensor.dtype),
                          " is given");
  CELER_RETURN_IF_ERROR(MakeShape(data.tensor.shape.dims()));
  if (!value.type.shape) return {};
  const std::vector<Dim>& dims = *value.type.shape;
  bool fits = static_cast<size_t>(data.tensor.shape.rank()) == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i)
    fits = !dims[i].fixed() || dims[i].size == data.tensor.shape[static_cast<int>(i)];
  if (!fits)
    return Error::Invalid(where, " is ", ToString(value.type), ", and ", data.tensor.shape.ToString(),
                          " is given");
  return {};
}

}  // namespace

Session::Session(std::shared_ptr<const Program> program, ThreadPool& pool)
    : program_(std::move(program)), pool_(pool) {}

Result<MemoryPlan*> Session::PlanFor(const std::vector<Data>& inputs) {
  const auto fits = [&](const MemoryPlan& plan) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!(plan.inputs[i] == inputs[i].tensor.shape) || plan.input_types[i] != inputs[i].tensor.dtype)
        return false;
    return true;
  };
  for (auto at = plans_.begin(); at != plans_.end(); ++at)
    if (fits(*at)) {
      plans_.splice(plans_.begin(), plans_, at);
      return &plans_.front();
    }
  CELER_ASSIGN(MemoryPlan plan, PlanMemory(program_->main(), inputs, pool_, program_->packs()));
  if (plans_.size() >= kMaxPlans) plans_.pop_back();
  plans_.push_front(std::move(plan));
  return &plans_.front();
}

// The arena grows to the largest plan; the values of each plan then point into it.
Status Session::Attach(MemoryPlan& plan) {
  if (arena_.size() < static_cast<size_t>(plan.arena_bytes)) {
    arena_ = Buffer();  // first give back, then take
    CELER_ASSIGN(arena_, Buffer::Allocate(CpuAllocator(), static_cast<size_t>(plan.arena_bytes)));
  }
  for (size_t v = 0; v < plan.offset.size(); ++v)
    if (plan.offset[v] >= 0) {
      plan.frame[v].tensor.data = arena_.data() + plan.offset[v];
      plan.frame[v].known = true;
    }
  return {};
}

Result<std::vector<Data>> Session::Run(std::vector<Data> inputs) {
  const CompiledGraph& graph = program_->main();
  if (inputs.size() != graph.graph->inputs.size())
    return Error::Invalid(inputs.size(), " inputs are given, and the network has ",
                          graph.graph->inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    CELER_RETURN_IF_ERROR(CheckInput(graph.graph->value(graph.graph->inputs[i]), inputs[i]));
  CELER_ASSIGN(MemoryPlan* const plan, PlanFor(inputs));
  CELER_RETURN_IF_ERROR(Attach(*plan));
  std::vector<Data>& values = plan->frame;
  for (size_t i = 0; i < inputs.size(); ++i)
    values[static_cast<size_t>(graph.graph->inputs[i])] = std::move(inputs[i]);

  Frame frame(*program_, graph, values, pool_);
  std::vector<const Data*> in;
  std::vector<Data> out;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const CompiledNode& compiled = graph.nodes[n];
    const Node& node = *compiled.node;
    const PlannedNode& planned = plan->nodes[n];
    const auto start = observer_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    Status status;
    switch (planned.how) {
      case PlannedNode::How::kFolded:
        break;
      case PlannedNode::How::kView: {
        std::byte* const from = values[node.inputs[0]].tensor.data;
        for (size_t i = 0; i < node.outputs.size(); ++i) {
          if (node.outputs[i] == kNoValue) continue;
          Data& to = values[node.outputs[i]];
          to.tensor.data = from + planned.parts[i];
          to.known = true;
        }
        break;
      }
      case PlannedNode::How::kPlanned: {
        in.clear();
        out.clear();
        for (const ValueId id : node.inputs) in.push_back(id == kNoValue ? nullptr : &values[id]);
        for (const ValueId id : node.outputs) out.push_back(id == kNoValue ? Data{} : values[id]);
        KernelContext run(node, in, out, pool_, &frame);
        run.state = planned.prepared.state.get();
        if (planned.workspace >= 0) run.workspace = arena_.data() + planned.workspace;
        status = RunKernel(*compiled.op, planned.kernel, run);
        break;
      }
      case PlannedNode::How::kDynamic:
        status = CatchBadAlloc([&] { return frame.RunNode(compiled); });
        break;
    }
    if (!status) return status.error().WithContext(node.Label());
    if (observer_) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      std::vector<const Data*> made;
      for (const ValueId id : node.outputs) made.push_back(id == kNoValue ? nullptr : &values[id]);
      observer_(node, made, took.count());
    }
    for (const ValueId id : compiled.dead)
      if (plan->transient[id]) values[id] = {};
  }

  std::vector<Data> result;
  // Inputs live to the end of the run, because reshapes alias them.
  for (const ValueId id : graph.graph->outputs) {
    const auto v = static_cast<size_t>(id);
    result.push_back(values[v]);
    const bool stays = plan->offset[v] >= 0 || values[v].owner || graph.graph->value(id).constant;
    if (values[v].kind == Data::Kind::kTensor && !stays) {
      CELER_ASSIGN(result.back(), Copied(values[v]));
    }
  }
  for (const ValueId id : graph.graph->inputs) values[id].owner = nullptr;
  return result;
}

}  // namespace celer::graph
