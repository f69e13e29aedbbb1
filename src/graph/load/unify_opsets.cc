#include "graph/load/unify_opsets.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <span>

#include "graph/ir/operator_table.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

// Opsets at which the form of an operator changed.
struct Change {
  std::string_view op;
  int since;
};
constexpr Change kChanges[] = {
    {"Add", 7},
    {"Sub", 7},
    {"Mul", 7},
    {"Div", 7},
    {"Pow", 7},
    {"BatchNormalization", 9},
    {"Upsample", 9},
    {"Slice", 10},
    {"TopK", 10},
    {"Clip", 11},
    {"Pad", 11},
    {"Resize", 11},
    {"Dropout", 12},
    {"Softmax", 13},
    {"LogSoftmax", 13},
    {"Hardmax", 13},
    {"Squeeze", 13},
    {"Unsqueeze", 13},
    {"ReduceSum", 13},
    {"Split", 13},
    {"Split", 18},
    {"ReduceMax", 18},
    {"ReduceMin", 18},
    {"ReduceMean", 18},
    {"ReduceProd", 18},
    {"ReduceL1", 18},
    {"ReduceL2", 18},
    {"ReduceLogSum", 18},
    {"ReduceLogSumExp", 18},
    {"ReduceSumSquare", 18},
    {"GroupNormalization", 21},
};

// The last change in (after, upto]; 0: none.
int ChangedSince(const Node& node, int after, int upto) {
  int last = 0;
  for (const Change& change : kChanges)
    if (node.op == change.op && change.since > after && change.since <= upto) last = change.since;
  return last;
}

// True if the opset has the node as it stands.
bool IsKnownAt(const Node& node, int opset) {
  if (opset < node.opset)
    return !ChangedSince(node, opset, node.opset) &&
           FindOperator(node.domain, node.op, opset) == FindOperator(node);
  return !ChangedSince(node, node.opset, opset);
}

class Raiser {
 public:
  Raiser(Graph& graph, int opset) : graph_(graph), opset_(opset) {}

  Status All() {
    for (Node& node : graph_.nodes) {
      for (const auto& subgraph : node.Subgraphs()) CELER_RETURN_IF_ERROR(Raiser(*subgraph, opset_).All());
      if (!node.domain.empty()) continue;
      if (!IsKnownAt(node, opset_) && !Rewrite(node))
        return Error::Unsupported(node.Label(), " of opset ", node.opset, " means something else in opset ",
                                  opset_, ", which other nodes need");
      node.opset = opset_;
    }
    if (added_.empty()) return {};
    std::move(added_.begin(), added_.end(), std::back_inserter(graph_.nodes));
    return graph_.Sort();
  }

 private:
  void Drop(Node& node, std::string_view key) {
    std::erase_if(node.attributes, [&](const auto& attribute) { return attribute.first == key; });
  }
  ValueId Ints(const Node& node, std::string_view key, const std::vector<int64_t>& numbers, bool scalar) {
    auto copy = std::make_shared<std::vector<int64_t>>(numbers);
    const auto bytes = std::as_bytes(std::span<const int64_t>(*copy));
    const Shape shape = scalar ? Shape{} : ListShape(copy->size());
    return graph_.AddConstant(NameFor(node, key), {DType::kI64, shape, bytes, std::move(copy)});
  }
  std::string NameFor(const Node& node, std::string_view key) const {
    return (node.name.empty() ? node.op : node.name) + "." + std::string(key);
  }
  void Put(Node& node, size_t place, ValueId value) {
    if (node.inputs.size() <= place) node.inputs.resize(place + 1, kNoValue);
    node.inputs[place] = value;
  }
  // An attribute with a list of integers becomes an input.
  void Move(Node& node, const char* key, size_t place) {
    if (!node.Find(key)) return;
    Put(node, place, Ints(node, key, node.Ints(key), false));
    Drop(node, key);
  }
  void MoveFloat(Node& node, const char* key, size_t place) {
    const auto* const found = node.Get<float>(key);
    if (!found) return;
    auto copy = std::make_shared<float>(*found);
    const auto bytes = std::as_bytes(std::span<const float>(copy.get(), 1));
    Put(node, place, graph_.AddConstant(NameFor(node, key), {DType::kF32, Shape{}, bytes, std::move(copy)}));
    Drop(node, key);
  }

  bool Rewrite(Node& node) {
    const std::string& op = node.op;
    if (node.inputs.empty() || node.inputs[0] == kNoValue) return false;
    if (op == "Squeeze" || op == "Unsqueeze" || op.starts_with("Reduce")) {
      Move(node, "axes", 1);
      return true;
    }
    if (op == "Split") {
      if (node.opset < 13) Move(node, "split", 1);
      const bool given = node.inputs.size() > 1 && node.inputs[1] != kNoValue;
      if (opset_ >= 18 && !given && !node.Find("num_outputs"))
        node.attributes.emplace_back("num_outputs", static_cast<int64_t>(node.outputs.size()));
      return true;
    }
    if (op == "Softmax" || op == "LogSoftmax" || op == "Hardmax") return RewriteSoftmax(node);
    if (op == "Dropout") {
      Drop(node, "ratio");
      return true;
    }
    const std::optional<DType> type = graph_.value(node.inputs[0]).type.dtype;
    const bool floats = !type || *type == DType::kF32;
    if (op == "Clip" && node.opset >= 6 && floats) {
      MoveFloat(node, "min", 1);
      MoveFloat(node, "max", 2);
      return true;
    }
    if (op == "Pad" && node.opset >= 2 && floats) {
      Move(node, "pads", 1);
      MoveFloat(node, "value", 2);
      return true;
    }
    if (op == "Slice") {
      Move(node, "starts", 1);
      Move(node, "ends", 2);
      Move(node, "axes", 3);
      return true;
    }
    if (op == "TopK" && node.opset < 10) {
      Put(node, 1, Ints(node, "k", {node.Int("k", 1)}, false));
      Drop(node, "k");
      return true;
    }
    return false;
  }

  // Before opset 13 all dimensions from the axis on are one. That is the same if the axis is the last.
  bool RewriteSoftmax(Node& node) {
    const auto& shape = graph_.value(node.inputs[0]).type.shape;
    const int64_t axis = node.Int("axis", 1);
    bool last = axis == -1 || (shape && axis == static_cast<int64_t>(shape->size()) - 1);
    if (!last && !shape) {  // most files leave it to be found out
      const SampleShapes shapes = SampleShapesOf(graph_);
      const auto id = static_cast<size_t>(node.inputs[0]);
      last = shapes.exact_ranks && id < shapes.of.size() && shapes.of[id] &&
             axis == static_cast<int64_t>(shapes.of[id]->rank()) - 1;
    }
    Drop(node, "axis");
    node.attributes.emplace_back("axis", int64_t{-1});
    if (!last) FlattenAround(node, axis);
    return true;
  }

  // As the old meaning has it: all dimensions from the axis on become one, and are themselves again behind
  // it.
  void FlattenAround(Node& node, int64_t axis) {
    const ValueId x = node.inputs[0], y = node.outputs[0];
    const ValueId shape = graph_.AddValue(NameFor(node, "shape")),
                  flat = graph_.AddValue(NameFor(node, "flat")),
                  scores = graph_.AddValue(NameFor(node, "scores"));
    const auto add = [&](const char* op, std::vector<ValueId> inputs, ValueId output) -> Node& {
      return added_.emplace_back(Node{.op = op,
                                      .name = NameFor(node, op),
                                      .opset = opset_,
                                      .inputs = std::move(inputs),
                                      .outputs = {output}});
    };
    add("Shape", {x}, shape);
    add("Flatten", {x}, flat).attributes.emplace_back("axis", axis);
    add("Reshape", {scores, shape}, y);
    node.inputs[0] = flat;
    node.outputs[0] = scores;
  }

  Graph& graph_;
  const int opset_;
  std::vector<Node> added_;
};

void FindOpset(const Graph& graph, int* opset) {
  for (const Node& node : graph.nodes) {
    for (const auto& subgraph : node.Subgraphs()) FindOpset(*subgraph, opset);
    if (node.domain.empty() && node.opset > *opset && !IsKnownAt(node, *opset)) *opset = node.opset;
  }
}

}  // namespace

Result<int> UnifyOpsets(Graph* graph, int at_least) {
  int opset = std::max(at_least, kOldestOpset);
  FindOpset(*graph, &opset);
  CELER_RETURN_IF_ERROR(Raiser(*graph, opset).All());
  return opset;
}

}  // namespace celer::graph
