#include "graph/run/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/safe_math.h"
#include "graph/ir/call_operator.h"

namespace celer::graph {
namespace {

// Shape computations are folded, weights are not: that would double them.
constexpr int64_t kFoldBytes = 64 << 10;
constexpr int64_t kAlignment = 64;

int64_t Bytes(const TensorView& tensor) {
  return *BytesFor(tensor.dtype, *tensor.shape.elements());
}

// Values that alias.
struct Group {
  int64_t bytes;
  int32_t first, last;
};

class Planner {
 public:
  Planner(const CompiledGraph& graph, ThreadPool& pool, PackCache& packs)
      : graph_(graph), pool_(pool), packs_(packs) {
    const size_t values = graph.graph->values.size();
    plan_.frame = graph.frame;
    plan_.nodes.resize(graph.nodes.size());
    plan_.node_flops.assign(graph.nodes.size(), 0);
    plan_.node_bytes.assign(graph.nodes.size(), 0);
    plan_.offset.assign(values, -1);
    plan_.transient.assign(values, false);
    group_.assign(values, -1);
    inner_.assign(values, 0);
    ready_.assign(values, false);
    for (size_t v = 0; v < values; ++v) ready_[v] = graph.graph->values[v].constant.has_value();
  }

  Result<MemoryPlan> Make(std::vector<Data> inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto id = static_cast<size_t>(graph_.graph->inputs[i]);
      plan_.inputs.push_back(inputs[i].tensor.shape);
      plan_.input_types.push_back(inputs[i].tensor.dtype);
      if (inputs[i].kind != Data::Kind::kTensor) continue;  // known only when it runs
      inputs[i].known = false;
      inputs[i].tensor.data = nullptr;
      inputs[i].owner = nullptr;
      plan_.frame[id] = std::move(inputs[i]);
      ready_[id] = true;
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (const Status status = CatchBadAlloc([&] { return PlanNode(n); }); !status)
        return status.error().WithContext(graph_.nodes[n].node->Label());
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (plan_.nodes[n].how == PlannedNode::How::kDynamic)
        for (const ValueId id : graph_.nodes[n].node->outputs)
          if (id != kNoValue) plan_.transient[id] = true;
    Place();
    return std::move(plan_);
  }

 private:
  Status PlanNode(size_t n) {
    const CompiledNode& compiled = graph_.nodes[n];
    const Node& node = *compiled.node;
    PlannedNode& planned = plan_.nodes[n];
    if (compiled.op->traits & (Operator::kControl | Operator::kSequences)) return {};
    std::vector<const Data*> in;
    bool known = true;
    for (const ValueId id : node.inputs) {
      if (id != kNoValue && !ready_[id]) return {};
      in.push_back(id == kNoValue ? nullptr : &plan_.frame[id]);
      known = known && (!in.back() || in.back()->known);
    }
    std::vector<InferContext::Output> types(node.outputs.size());
    InferContext infer(node, in, types);
    CELER_RETURN_IF_ERROR(InferOutputs(*compiled.op, infer));
    int64_t bytes = 0;
    for (size_t i = 0; i < types.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      if (!types[i].set) return {};
      bytes += *BytesFor(types[i].dtype, *types[i].shape.elements());
    }
    if (static_cast<uint64_t>(bytes) > MaxTensorBytes())  // before anything is made for it
      return Error::OutOfMemory(node.Label(), " gives ", bytes, " bytes; this machine has ", MaxTensorBytes(),
                                " in all; give it smaller inputs");
    known = known || (compiled.op->traits & Operator::kShapeOnly);
    if (known && bytes <= kFoldBytes && !(compiled.op->traits & Operator::kRandom))
      return Fold(compiled, in, types, planned);

    plan_.node_flops[n] = compiled.op->flops ? compiled.op->flops(infer)
                          : types[0].set     ? static_cast<double>(*types[0].shape.elements())
                                             : 0;
    plan_.flops += plan_.node_flops[n];
    plan_.node_bytes[n] = static_cast<double>(bytes);
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i] && std::find(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(i), in[i]) ==
                       in.begin() + static_cast<std::ptrdiff_t>(i))
        plan_.node_bytes[n] += static_cast<double>(Bytes(in[i]->tensor));
    planned.parts = ViewOffsets(compiled, infer, types);
    const bool view = !planned.parts.empty();
    planned.how = view ? PlannedNode::How::kView : PlannedNode::How::kPlanned;
    planned.kernel = compiled.op->reference;
    int overwrites = -1;
    if (const FastKernel* const fast = ChooseKernel(*compiled.op, infer)) {
      overwrites = fast->overwrites;
      planned.kernel = fast->run;
      planned.kernel_name = fast->name;
      PackCache own;  // what was computed ahead is this plan's: its memory will hold something else one day
      if (fast->prepare)
        planned.prepared = fast->prepare(infer, pool_.size(), OnlyConstantsKnown(node) ? packs_ : own);
      if (planned.prepared.workspace_bytes > 0) {
        const auto at = static_cast<int32_t>(n);
        planned.workspace = static_cast<int64_t>(groups_.size());  // Place() makes it an offset
        groups_.push_back({.bytes = planned.prepared.workspace_bytes, .first = at, .last = at});
      }
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const auto id = static_cast<size_t>(node.outputs[i]);
      plan_.frame[id] =
          Data::Of(TensorView::Contiguous(nullptr, types[i].dtype, Device::Cpu(), types[i].shape));
      plan_.frame[id].known = false;
      ready_[id] = true;
      const int64_t size = Bytes(plan_.frame[id].tensor);
      if (!view) plan_.naive_bytes += static_cast<int64_t>(RoundUp(static_cast<uint64_t>(size), kAlignment));
      const int32_t at = static_cast<int32_t>(n), last = std::max(graph_.last_use[id], at);
      const int32_t shared = view     ? GroupOf(node.inputs[0])
                             : i == 0 ? FindInPlaceInput(compiled, overwrites, at, id)
                                      : -1;
      if (shared >= 0) {
        group_[id] = shared;
        inner_[id] = view ? inner_[node.inputs[0]] + planned.parts[i] : overwritten_at_;
        Group& group = groups_[shared];
        group.last = std::max(group.last, last);
      } else if (!view) {
        group_[id] = static_cast<int32_t>(groups_.size());
        groups_.push_back({.bytes = size, .first = at, .last = last});
      }
    }
    if ((compiled.op->traits & Operator::kJoin) && node.outputs[0] != kNoValue) Join(node, infer);
    return {};
  }

  // The byte offset of each output in the first input, if all of them are views of it; else nothing.
  std::vector<int64_t> ViewOffsets(const CompiledNode& compiled, const InferContext& infer,
                                   std::span<const InferContext::Output> types) const {
    if (compiled.op->traits & Operator::kView) return {0};
    std::vector<int64_t> parts;
    if (!compiled.op->part) return parts;
    for (size_t i = 0; i < types.size(); ++i) {
      const auto offset = compiled.op->part(infer, i);
      if (!offset) return {};
      parts.push_back(*BytesFor(types[i].dtype, *offset));
    }
    return parts;
  }

  // Concatenation in place: inputs without memory yet are placed where the joined output has them, so that
  // nothing is left to copy. An input may consist of parts that follow each other.
  void Join(const Node& node, const InferContext& infer) {
    const auto out = static_cast<size_t>(node.outputs[0]);
    const Shape& shape = plan_.frame[out].tensor.shape;
    int64_t axis = node.Int("axis", 1);
    axis += axis < 0 ? shape.rank() : 0;
    for (int i = 0; i < axis; ++i)
      if (shape[i] != 1) return;
    const int32_t joined = group_[out];
    int64_t at = 0;
    for (size_t i = 0; i < node.inputs.size();) {
      const int32_t group = GroupOf(node.inputs[i]);
      int64_t bytes = 0;
      size_t next = i;
      for (; next < node.inputs.size() && GroupOf(node.inputs[next]) == group; ++next) {
        if (group < 0 && next > i) break;
        if (group >= 0 && inner_[node.inputs[next]] != bytes) break;
        bytes += Bytes(infer.in(next));
      }
      if (next == i) bytes = Bytes(infer.in(next++));
      const bool whole = group >= 0 && groups_[group].bytes == bytes;
      const bool again = std::any_of(node.inputs.begin() + static_cast<std::ptrdiff_t>(next),
                                     node.inputs.end(), [&](ValueId id) { return GroupOf(id) == group; });
      if (whole && !again) Move(group, joined, at);
      at += bytes;
      i = next;
    }
  }

  void Move(int32_t from, int32_t to, int64_t at) {
    for (size_t v = 0; v < group_.size(); ++v)
      if (group_[v] == from) {
        group_[v] = to;
        inner_[v] += at;
      }
    Group &gone = groups_[from], &group = groups_[to];
    group.first = std::min(group.first, gone.first);
    group.last = std::max(group.last, gone.last);
    gone.bytes = 0;
  }

  bool OnlyConstantsKnown(const Node& node) const {
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      return id == kNoValue || !plan_.frame[id].known || graph_.graph->value(id).constant.has_value();
    });
  }

  int32_t GroupOf(ValueId id) const { return group_[id]; }

  // The memory of an input that is last used by node `at` and is as large as the output; -1 if there is none.
  // Any input will do for an operator that works in place, and this one for a kernel that may overwrite it.
  int32_t FindInPlaceInput(const CompiledNode& compiled, int only, int32_t at, size_t output) {
    const Node& node = *compiled.node;
    const bool any = compiled.op->traits & Operator::kInPlace;
    const TensorView& out = plan_.frame[output].tensor;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kNoValue || GroupOf(id) < 0 || (!any && static_cast<int>(i) != only)) continue;
      const int32_t candidate = GroupOf(id);
      const TensorView& in = plan_.frame[id].tensor;
      if (groups_[candidate].last != at || !(in.shape == out.shape) || Bytes(in) != Bytes(out)) continue;
      const bool read_otherwise = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId other) {
        return other != kNoValue && other != id && GroupOf(other) == candidate;
      });
      if (!read_otherwise) {
        overwritten_at_ = inner_[id];
        return candidate;
      }
    }
    return -1;
  }

  Status Fold(const CompiledNode& compiled, std::span<const Data* const> in,
              std::span<const InferContext::Output> types, PlannedNode& planned) {
    const Node& node = *compiled.node;
    std::vector<Data> out(node.outputs.size());
    for (size_t i = 0; i < out.size(); ++i)
      if (node.outputs[i] != kNoValue) {
        CELER_ASSIGN(out[i], NewTensor(types[i].dtype, types[i].shape));
      }
    KernelContext run(node, in, out, pool_, nullptr);
    CELER_RETURN_IF_ERROR(RunKernel(*compiled.op, compiled.op->reference, run));
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const auto id = static_cast<size_t>(node.outputs[i]);
      plan_.frame[id] = std::move(out[i]);
      ready_[id] = true;
    }
    planned.how = PlannedNode::How::kFolded;
    return {};
  }

  void Place() {
    std::vector<Block> blocks;
    for (const Group& group : groups_)
      blocks.push_back({static_cast<int64_t>(RoundUp(static_cast<uint64_t>(group.bytes), kAlignment)),
                        group.first, group.last});
    plan_.arena_bytes = PlaceBlocks(blocks);
    for (size_t v = 0; v < group_.size(); ++v)
      if (group_[v] >= 0) plan_.offset[v] = blocks[group_[v]].offset + inner_[v];
    for (PlannedNode& node : plan_.nodes)
      if (node.workspace >= 0) node.workspace = blocks[node.workspace].offset;
    std::vector<int64_t> change(graph_.nodes.size() + 2, 0);
    for (const Block& block : blocks) {
      change[block.first] += block.bytes;
      change[static_cast<size_t>(block.last) + 1] -= block.bytes;
    }
    int64_t live = 0;
    for (const int64_t step : change) plan_.live_bytes = std::max(plan_.live_bytes, live += step);
  }

  const CompiledGraph& graph_;
  ThreadPool& pool_;
  PackCache& packs_;
  MemoryPlan plan_;
  std::vector<int32_t> group_;  // by value; -1: none
  std::vector<int64_t> inner_;  // by value: where it begins in its group
  int64_t overwritten_at_ = 0;  // the same of the input that FindInPlaceInput() found
  std::vector<Group> groups_;
  std::vector<bool> ready_;  // by value: its type and shape are known
};

}  // namespace

Result<MemoryPlan> PlanMemory(const CompiledGraph& graph, std::vector<Data> inputs, ThreadPool& pool,
                              PackCache& packs) {
  return Planner(graph, pool, packs).Make(std::move(inputs));
}

int64_t PlaceBlocks(std::vector<Block>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<size_t> placed;  // by offset
  int64_t total = 0;
  for (const size_t index : order) {
    Block& block = blocks[index];
    int64_t at = 0;
    for (const size_t other : placed) {
      const Block& before = blocks[other];
      if (before.last < block.first || block.last < before.first) continue;
      if (before.offset >= at + block.bytes) break;
      at = std::max(at, before.offset + before.bytes);
    }
    block.offset = at;
    total = std::max(total, at + block.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), index,
                                   [&](size_t a, size_t b) { return blocks[a].offset < blocks[b].offset; }),
                  index);
  }
  return total;
}

const FastKernel* ChooseKernel(const Operator& op, const InferContext& context) {
  for (const FastKernel& kernel : op.fast)
    if (kernel.fits(context)) return &kernel;
  return nullptr;
}

}  // namespace celer::graph
