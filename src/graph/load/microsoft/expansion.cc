#include "graph/load/microsoft/expansion.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "graph/ir/operator.h"

namespace celer::graph {

void Expansion::Begin(Node node) {
  node_ = std::move(node);
  begin_ = nodes_.size();
  made_ = 0;
}

Expansion::Attributes Expansion::AttributesBut(std::initializer_list<std::string_view> prefixes) const {
  Attributes out;
  for (const auto& attribute : node_.attributes)
    if (std::none_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return attribute.first.starts_with(prefix); }))
      out.push_back(attribute);
  return out;
}

const Constant* Expansion::ConstantOf(ValueId value) const {
  if (value == kNoValue || !graph_.value(value).constant) return nullptr;
  return &*graph_.value(value).constant;
}

// Shapes of what is built so far. Few nodes ask, so that this is not done for every node.
const SampleShapes& Expansion::Samples(ValueId value) {
  const auto v = static_cast<size_t>(value);
  const bool known = v < samples_.of.size() && samples_.of[v];
  if (!known && sampled_nodes_ != nodes_.size()) {
    std::swap(graph_.nodes, nodes_);
    samples_ = SampleShapesOf(graph_);
    std::swap(graph_.nodes, nodes_);
    sampled_nodes_ = nodes_.size();
  }
  return samples_;
}

std::optional<int64_t> Expansion::Rank(ValueId value) {
  if (value == kNoValue) return std::nullopt;
  if (const Constant* const constant = ConstantOf(value)) return constant->shape.rank();
  if (const auto& shape = graph_.value(value).type.shape) return static_cast<int64_t>(shape->size());
  const SampleShapes& samples = Samples(value);
  const auto v = static_cast<size_t>(value);
  if (!samples.exact_ranks || v >= samples.of.size() || !samples.of[v]) return std::nullopt;
  return samples.of[v]->rank();
}

DType Expansion::TypeOf(ValueId value) {
  if (value == kNoValue) return DType::kF32;
  if (const Constant* const constant = ConstantOf(value)) return constant->dtype;
  if (const auto& dtype = graph_.value(value).type.dtype) return *dtype;
  const SampleShapes& samples = Samples(value);
  const auto v = static_cast<size_t>(value);
  return v < samples.types.size() && samples.types[v] ? *samples.types[v] : DType::kF32;
}

std::optional<int64_t> Expansion::Columns(ValueId value, int depth) const {
  constexpr int kMostDepth = 24;
  if (value == kNoValue || depth > kMostDepth) return std::nullopt;
  if (const Constant* const constant = ConstantOf(value)) {
    if (constant->shape.rank() == 0) return std::nullopt;
    return constant->shape[constant->shape.rank() - 1];
  }
  if (const auto& shape = graph_.value(value).type.shape; shape && !shape->empty() && shape->back().fixed())
    return shape->back().size;
  for (size_t n = nodes_.size(); n-- > 0;) {
    const Node& maker = nodes_[n];
    if (std::find(maker.outputs.begin(), maker.outputs.end(), value) == maker.outputs.end()) continue;
    constexpr std::array<std::string_view, 11> kKeep = {"LayerNormalization",
                                                        "RMSNormalization",
                                                        "Gelu",
                                                        "Relu",
                                                        "Tanh",
                                                        "Sigmoid",
                                                        "Identity",
                                                        "Cast",
                                                        "Erf",
                                                        "Dropout",
                                                        "Swish"};
    if (maker.op == "MatMul" && maker.inputs.size() == 2) return Columns(maker.inputs[1], depth + 1);
    if (std::find(kKeep.begin(), kKeep.end(), maker.op) != kKeep.end() && !maker.inputs.empty())
      return Columns(maker.inputs[0], depth + 1);
    if (maker.op == "Add" || maker.op == "Mul" || maker.op == "Sub" || maker.op == "Div") {
      // One of more than one column decides.
      for (const ValueId input : maker.inputs)
        if (const auto columns = Columns(input, depth + 1); columns && *columns > 1) return columns;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

ValueId Expansion::Add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes, int opset) {
  return AddMany(op, std::move(inputs), 1, std::move(attributes), opset)[0];
}

std::vector<ValueId> Expansion::AddMany(std::string_view op, std::vector<ValueId> inputs, size_t outputs,
                                        Attributes attributes, int opset) {
  while (!inputs.empty() && inputs.back() == kNoValue) inputs.pop_back();
  Node node{.op = std::string(op),
            .name = node_.name,
            .opset = opset,
            .inputs = std::move(inputs),
            .attributes = std::move(attributes)};
  const std::string base = node_.name.empty() ? node_.op : node_.name;
  for (size_t i = 0; i < outputs; ++i)
    node.outputs.push_back(
        graph_.AddValue(base + "#" + std::to_string(begin_) + "/" + node.op + std::to_string(made_++)));
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
}

ValueId Expansion::AddConstant(Constant constant) {
  return graph_.AddConstant((node_.name.empty() ? node_.op : node_.name) + "#" + std::to_string(begin_) +
                                "/constant" + std::to_string(made_++),
                            std::move(constant));
}

namespace {

template <class T>
Constant ConstantFrom(DType dtype, const Shape& shape, std::vector<T> numbers) {
  auto owned = std::make_shared<std::vector<T>>(std::move(numbers));
  const auto bytes = std::as_bytes(std::span<const T>(*owned));
  return {dtype, shape, bytes, std::move(owned)};
}

}  // namespace

ValueId Expansion::Ints(const std::vector<int64_t>& numbers) {
  return AddConstant(ConstantFrom(DType::kI64, ListShape(numbers.size()), numbers));
}
ValueId Expansion::Int(int64_t number) {
  return AddConstant(ConstantFrom(DType::kI64, Shape{}, std::vector<int64_t>{number}));
}
ValueId Expansion::Float(double number, ValueId like) {
  const auto single = static_cast<float>(number);
  switch (const DType dtype = TypeOf(like)) {
    case DType::kF64:
      return AddConstant(ConstantFrom(dtype, Shape{}, std::vector<double>{number}));
    case DType::kF16:
      return AddConstant(ConstantFrom(dtype, Shape{}, std::vector<uint16_t>{FloatToF16(single)}));
    case DType::kBf16:
      return AddConstant(ConstantFrom(dtype, Shape{}, std::vector<uint16_t>{FloatToBf16(single)}));
    default:
      return AddConstant(ConstantFrom(DType::kF32, Shape{}, std::vector<float>{single}));
  }
}

ValueId Expansion::SizeOf(ValueId value, int64_t axis) {
  return Add("Shape", {value}, {{"start", axis}, {"end", axis + 1}});
}
ValueId Expansion::ScalarSizeOf(ValueId value, int64_t axis) {
  return Add("Squeeze", {SizeOf(value, axis), Ints({0})});
}
ValueId Expansion::Transpose(ValueId value, std::vector<int64_t> order) {
  return Add("Transpose", {value}, {{"perm", std::move(order)}});
}

void Expansion::Give(size_t i, ValueId value) {
  if (!Wants(i) || value == kNoValue) return;
  const ValueId target = node_.outputs[i];
  bool mine = false;
  for (size_t n = begin_; n < nodes_.size(); ++n)
    mine |= std::find(nodes_[n].outputs.begin(), nodes_[n].outputs.end(), value) != nodes_[n].outputs.end();
  if (!mine) {  // an input, passed through
    nodes_.push_back(
        {.op = "Identity", .name = node_.name, .opset = 13, .inputs = {value}, .outputs = {target}});
    return;
  }
  for (size_t n = begin_; n < nodes_.size(); ++n)
    for (auto* const list : {&nodes_[n].inputs, &nodes_[n].outputs})
      std::replace(list->begin(), list->end(), value, target);
}

const ExpansionRow* FindExpansion(std::span<const ExpansionRow> rows, const Graph& graph, const Node& node) {
  for (const ExpansionRow& row : rows)
    if (row.op == node.op && row.domain == node.domain && (row.until == 0 || node.opset <= row.until) &&
        (!row.fits || row.fits(graph, node)))
      return &row;
  return nullptr;
}

Result<int> ExpandNodes(Graph* graph, std::span<const ExpansionRow> rows, bool subgraphs) {
  int count = 0;
  for (Node& node : graph->nodes)
    for (const auto& subgraph : node.Subgraphs()) {
      if (!subgraphs) break;
      CELER_ASSIGN(const int inner, ExpandNodes(subgraph.get(), rows, true));
      count += inner;
    }
  const auto row_of = [&](const Node& node) { return FindExpansion(rows, *graph, node); };
  if (std::none_of(graph->nodes.begin(), graph->nodes.end(), [&](const Node& n) { return row_of(n); }))
    return count;
  std::vector<Node> from = std::move(graph->nodes), to;
  graph->nodes.clear();
  Expansion expansion(graph, &to);
  for (Node& node : from) {
    const ExpansionRow* const row = row_of(node);
    if (!row) {
      to.push_back(std::move(node));
      continue;
    }
    expansion.Begin(std::move(node));
    row->expand(expansion);
    if (expansion.error()) return *expansion.error();
    ++count;
  }
  graph->nodes = std::move(to);
  return count;
}

namespace {

std::vector<ExpansionRow> AllExpansions() {
  std::vector<ExpansionRow> rows;
  for (const auto list : {FusedExpansions(), AttentionExpansions(), QuantizedExpansions()})
    rows.insert(rows.end(), list.begin(), list.end());
  return rows;
}

}  // namespace

Status ExpandMicrosoft(Graph* graph) {
  const auto count = ExpandNodes(graph, AllExpansions(), true);
  if (!count) return count.error();
  return {};
}

std::vector<std::string_view> MicrosoftOperators() {
  std::vector<std::string_view> names;
  for (const ExpansionRow& row : AllExpansions())
    if (row.domain == "com.microsoft") names.push_back(row.op);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace celer::graph
