#include "quantize/network/quantizer_plan.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "graph/passes/pass.h"
#include "quantize/network/functions.h"

namespace celer::ptq {
namespace {

using graph::Graph;
using graph::Node;

bool IsOneOf(const Node& node, std::initializer_list<std::string_view> names) {
  return node.domain.empty() && std::find(names.begin(), names.end(), node.op) != names.end();
}

bool IsConstant(const Graph& graph, ValueId id) {
  return id != kNoValue && graph.value(id).constant.has_value();
}

// Relu, or Clip with bounds that are known: what is left lies inside what was there.
bool IsClip(const Graph& graph, const Node& node) {
  if (IsOneOf(node, {"Relu"})) return true;
  if (!IsOneOf(node, {"Clip"})) return false;
  for (size_t i = 1; i < node.inputs.size(); ++i)
    if (node.inputs[i] != kNoValue && !IsConstant(graph, node.inputs[i])) return false;
  return true;
}

bool IsElementwise(const Node& node) {
  return IsOneOf(node, {"Add", "Sub", "Mul", "Sigmoid", "HardSigmoid", "HardSwish", "Swish", "Gelu", "Tanh",
                        "LeakyRelu", "Elu", "GlobalAveragePool", "ReduceMean"});
}

bool IsPassive(const Graph& graph, const Node& node) {
  if (IsOneOf(node,
              {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool", "AveragePool",
               "Concat", "Split", "DepthToSpace", "SpaceToDepth", "Identity", "Expand", "Tile"}))
    return true;
  if (IsClip(graph, node)) return true;
  if (IsOneOf(node, {"Resize", "Upsample"})) return node.Text("mode", "nearest") == "nearest";
  if (IsOneOf(node, {"Pad"})) {
    // The grid has an exact zero, and perhaps nothing else of what might be put around.
    if (node.Text("mode", "constant") != "constant") return true;
    if (node.Float("value", 0) != 0) return false;
    if (node.inputs.size() < 3 || node.inputs[2] == kNoValue) return true;
    const auto& value = graph.value(node.inputs[2]).constant;
    const std::vector<float> number = value ? graph::FloatsOf(*value) : std::vector<float>();
    return number.size() == 1 && number[0] == 0;
  }
  return false;
}

// Which inputs are activations. Empty: not all of them are f32.
std::vector<size_t> DataInputs(const Graph& graph, const ValueFacts& facts, const Node& node) {
  const size_t most = IsOneOf(node, {"Concat"})                     ? node.inputs.size()
                      : IsOneOf(node, {"Add", "Sub", "Mul", "Div"}) ? 2
                                                                    : 1;
  std::vector<size_t> out;
  for (size_t i = 0; i < std::min(most, node.inputs.size()); ++i) {
    const ValueId id = node.inputs[i];
    if (id == kNoValue || !facts.is_float[id]) return {};
    if (!IsConstant(graph, id))
      out.push_back(i);
    else if (most != 2)
      return {};  // a constant among what Concat joins
  }
  return out;
}

class Planner {
 public:
  Planner(const Graph& graph, const ValueFacts& facts, const PlanOptions& options)
      : graph_(graph), facts_(facts), options_(options) {
    parent_.resize(graph.values.size());
    std::iota(parent_.begin(), parent_.end(), 0);
    integer_.assign(graph.values.size(), false);
    passive_made_.assign(graph.values.size(), false);
    done_.assign(graph.nodes.size(), false);
    function_.assign(graph.nodes.size(), nullptr);
    if (options.dynamic) return;
    functions_ = FunctionsIn(graph, facts);
    for (const Function& function : functions_)
      for (const size_t n : function.nodes) function_[n] = &function;
  }

  QuantizerPlan Make() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (!done_[n]) Visit(n);
    Group();
    return std::move(plan_);
  }

 private:
  bool Wanted(const std::string& name) const {
    if (!options_.only.empty()) return name == options_.only;
    return !options_.floats.contains(name);
  }

  void Visit(size_t n) {
    const Node& node = graph_.nodes[n];
    if (function_[n] && function_[n]->nodes[0] != n) return;  // it went with the first
    Layer layer;
    layer.node = n;
    layer.name = facts_.names[n];
    const bool product =
        (options_.dynamic ? MatchDynamicProduct(graph_, node) : MatchProduct(graph_, node)).has_value();
    if (options_.dynamic && !product) return;
    if (product)
      layer.kind = Layer::Kind::kProduct;
    else if (function_[n] || IsElementwise(node))
      layer.kind = Layer::Kind::kElementwise;
    else if (IsPassive(graph_, node))
      layer.kind = Layer::Kind::kPassive;
    else
      return;
    layer.data = product ? std::vector<size_t>{0} : DataInputs(graph_, facts_, node);
    if (layer.data.empty() || node.outputs.empty() || node.outputs[0] == kNoValue ||
        !facts_.is_float[node.inputs[layer.data[0]]] || !facts_.is_float[node.outputs[0]])
      return;
    const bool passive = layer.kind == Layer::Kind::kPassive;
    bool integers = true;
    for (const size_t i : layer.data)
      integers &= integer_[node.inputs[i]] || quantized_.contains(node.inputs[i]);
    if (!product && !integers && options_.only.empty()) return;
    if (passive && !options_.only.empty()) return;
    if (!passive) ++plan_.candidates;
    if (!Wanted(layer.name)) return;
    Follow(layer);
    Close(layer);
  }

  // Takes in what the same kernel does.
  void Follow(Layer& layer) {
    const Node* last = &graph_.nodes[layer.node];
    if (const Function* const function = function_[layer.node]) {
      layer.followers.assign(function->nodes.begin() + 1, function->nodes.end());
      layer.outputs = {graph_.nodes[function->nodes.back()].outputs[0]};
      return;
    }
    if (layer.kind == Layer::Kind::kPassive) {
      const bool many = last->op == "Split";
      for (size_t i = 0; i < (many ? last->outputs.size() : 1); ++i)
        if (last->outputs[i] != kNoValue) layer.outputs.push_back(last->outputs[i]);
      return;
    }
    const bool sums = layer.kind == Layer::Kind::kProduct || last->op == "Add";
    bool cut = options_.dynamic && last->op != "MatMul";  // behind a dynamic product only its bias
    while (sums && !cut) {
      const ValueId out = last->outputs[0];
      const auto& readers = facts_.readers[out];
      if (readers.size() != 1 || facts_.kept[out]) break;
      const Node& next = graph_.nodes[readers[0]];
      const bool bias = last->op == "MatMul" && IsBias(next, out);
      if (!bias && (options_.dynamic || !IsClip(graph_, next) || next.inputs[0] != out)) break;
      if (!facts_.is_float[next.outputs[0]]) break;
      cut = !bias || options_.dynamic;
      layer.followers.push_back(readers[0]);
      last = &next;
    }
    layer.outputs = {last->outputs[0]};
  }

  // x + a constant for each column.
  bool IsBias(const Node& node, ValueId x) const {
    if (!IsOneOf(node, {"Add"}) || node.inputs.size() != 2) return false;
    const ValueId other = node.inputs[0] == x ? node.inputs[1] : node.inputs[0];
    return IsConstant(graph_, other) && graph_.value(other).constant->shape.rank() == 1;
  }

  void Close(Layer& layer) {
    const Node& node = graph_.nodes[layer.node];
    for (const ValueId out : layer.outputs) {
      const auto v = static_cast<size_t>(out);
      const bool is_output =
          std::find(graph_.outputs.begin(), graph_.outputs.end(), out) != graph_.outputs.end();
      if (is_output && facts_.readers[v].empty() && !options_.quantize_outputs) layer.quantize_output = false;
    }
    // What only moves values on their way out may do so with reals.
    if (layer.kind == Layer::Kind::kPassive && !layer.quantize_output) return;
    done_[layer.node] = true;
    for (const size_t follower : layer.followers) done_[follower] = true;
    if (options_.dynamic) {
      layer.quantize_output = false;
      plan_.layers.push_back(std::move(layer));
      return;
    }
    for (const size_t i : layer.data) Quantize(node.inputs[i]);
    if (layer.quantize_output)
      for (const ValueId out : layer.outputs) {
        integer_[out] = true;
        plan_.made.insert(out);
        Quantize(out);
      }
    if (layer.kind == Layer::Kind::kPassive) {
      for (const size_t i : layer.data) Join(node.inputs[i], layer.outputs[0]);
      for (const ValueId out : layer.outputs) {
        Join(node.inputs[layer.data[0]], out);
        passive_made_[out] = true;
      }
    } else if (options_.align_add && node.op == "Add" && layer.data.size() == 2) {
      Join(node.inputs[0], node.inputs[1]);
    }
    plan_.layers.push_back(std::move(layer));
  }

  void Quantize(ValueId id) {
    if (quantized_.insert(id).second) plan_.values.push_back(id);
  }
  size_t Find(size_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void Join(ValueId a, ValueId b) {
    const size_t x = Find(static_cast<size_t>(a)), y = Find(static_cast<size_t>(b));
    parent_[std::max(x, y)] = std::min(x, y);
  }

  void Group() {
    for (const ValueId id : plan_.values) {
      const auto representative = static_cast<ValueId>(Find(static_cast<size_t>(id)));
      plan_.group[id] = representative;
      if (!passive_made_[id]) plan_.roots[representative].push_back(id);
    }
  }

  const Graph& graph_;
  const ValueFacts& facts_;
  const PlanOptions& options_;
  QuantizerPlan plan_;
  std::vector<size_t> parent_;
  std::vector<bool> integer_, passive_made_, done_;
  std::set<ValueId> quantized_;
  std::vector<Function> functions_;
  std::vector<const Function*> function_;  // by node: that it is part of
};

}  // namespace

bool QuantizerPlan::empty() const {
  return std::none_of(layers.begin(), layers.end(),
                      [](const Layer& layer) { return layer.kind == Layer::Kind::kProduct; });
}

const Layer* QuantizerPlan::Find(const std::string& name) const {
  for (const Layer& layer : layers)
    if (layer.name == name) return &layer;
  return nullptr;
}

ValueFacts FindValueFacts(const Graph& graph) {
  ValueFacts out;
  const graph::SampleShapes shapes = graph::SampleShapesOf(graph);
  const size_t count = graph.values.size();
  out.readers.resize(count);
  out.maker.assign(count, -1);
  out.kept.assign(count, false);
  for (size_t v = 0; v < count; ++v) {
    const graph::Value& value = graph.values[v];
    const auto type = value.constant                               ? std::optional(value.constant->dtype)
                      : v < shapes.types.size() && shapes.types[v] ? shapes.types[v]
                                                                   : value.type.dtype;
    out.is_float.push_back(value.type.kind == graph::ValueType::Kind::kTensor && type == DType::kF32);
  }
  std::map<std::string, int> used;
  for (const Node& node : graph.nodes) ++used[node.name];
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const bool named = !node.name.empty() && used[node.name] == 1;
    std::string output;
    for (const ValueId id : node.outputs)
      if (id != kNoValue) {
        out.maker[id] = static_cast<int>(n);
        if (output.empty()) output = graph.value(id).name;
      }
    out.names.push_back(named ? node.name : output);
    for (const ValueId id : graph.Reads(node)) out.readers[id].push_back(n);
    for (const auto& subgraph : node.Subgraphs())
      for (const graph::Capture& capture : subgraph->captures) out.kept[capture.outer] = true;
  }
  for (const ValueId id : graph.outputs) out.kept[id] = true;
  return out;
}

QuantizerPlan MakePlan(const Graph& graph, const ValueFacts& facts, const PlanOptions& options) {
  return Planner(graph, facts, options).Make();
}

std::vector<ValueId> Quantizable(const Graph& graph, const ValueFacts& facts) {
  std::set<ValueId> out;
  for (const Node& node : graph.nodes) {
    const bool product = MatchProduct(graph, node).has_value();
    if (!product && !IsElementwise(node) && !IsPassive(graph, node)) continue;
    const auto add = [&](ValueId id) {
      if (id != kNoValue && !IsConstant(graph, id) && facts.is_float[id]) out.insert(id);
    };
    if (product)
      add(node.inputs[0]);
    else
      for (const size_t i : DataInputs(graph, facts, node)) add(node.inputs[i]);
    for (const ValueId id : node.outputs) add(id);
  }
  // What lies inside a kernel is never rounded, whichever layers stay float.
  for (const Layer& layer : MakePlan(graph, facts, {}).layers) {
    size_t node = layer.node;
    for (const size_t follower : layer.followers) {
      out.erase(graph.nodes[node].outputs[0]);
      node = follower;
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace celer::ptq
