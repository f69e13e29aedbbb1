#include "graph/ir/ir.h"

#include <algorithm>

#include "io/file/printable.h"

namespace celer::graph {

std::string ToString(const ValueType& type) {
  std::string out = type.dtype ? std::string(Name(*type.dtype)) : "?";
  if (type.shape) {
    out += "[";
    for (size_t i = 0; i < type.shape->size(); ++i) {
      const Dim& dim = (*type.shape)[i];
      out += i ? ", " : "";
      out += dim.fixed() ? std::to_string(dim.size) : dim.symbol.empty() ? "?" : Printable(dim.symbol);
    }
    out += "]";
  } else if (type.kind == ValueType::Kind::kTensor) {
    out += "[...]";
  }
  if (type.kind == ValueType::Kind::kSequence || type.of_sequence) out = "sequence of " + out;
  if (type.kind == ValueType::Kind::kOptional) out = "optional " + out;
  return out;
}

const Attribute* Node::Find(std::string_view key) const {
  for (const auto& [attribute_name, attribute] : attributes)
    if (attribute_name == key) return &attribute;
  return nullptr;
}

int64_t Node::Int(std::string_view key, int64_t otherwise) const {
  const auto* const found = Get<int64_t>(key);
  return found ? *found : otherwise;
}
float Node::Float(std::string_view key, float otherwise) const {
  const auto* const found = Get<float>(key);
  return found ? *found : otherwise;
}
std::string Node::Text(std::string_view key, std::string_view otherwise) const {
  const auto* const found = Get<std::string>(key);
  return found ? *found : std::string(otherwise);
}
std::vector<int64_t> Node::Ints(std::string_view key) const {
  const auto* const found = Get<std::vector<int64_t>>(key);
  return found ? *found : std::vector<int64_t>();
}
std::vector<float> Node::Floats(std::string_view key) const {
  const auto* const found = Get<std::vector<float>>(key);
  return found ? *found : std::vector<float>();
}
std::vector<std::string> Node::Texts(std::string_view key) const {
  const auto* const found = Get<std::vector<std::string>>(key);
  return found ? *found : std::vector<std::string>();
}

std::vector<std::shared_ptr<Graph>> Node::Subgraphs() const {
  std::vector<std::shared_ptr<Graph>> out;
  for (const auto& [attribute_name, attribute] : attributes)
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute)) out.push_back(*graph);
  return out;
}

std::string Node::Label() const {
  return Printable(op) + (name.empty() ? "" : " '" + Printable(name) + "'");
}

ValueId Graph::AddValue(std::string value_name, ValueType type) {
  values.push_back({std::move(value_name), std::move(type), std::nullopt});
  return static_cast<ValueId>(values.size() - 1);
}

ValueId Graph::AddInput(std::string value_name, ValueType type) {
  inputs.push_back(AddValue(std::move(value_name), std::move(type)));
  return inputs.back();
}

ValueId Graph::AddConstant(std::string value_name, Constant constant) {
  ValueType type{.dtype = constant.dtype, .shape = std::vector<Dim>()};
  for (const int64_t dim : constant.shape.dims()) type.shape->push_back({dim, {}});
  const ValueId id = AddValue(std::move(value_name), std::move(type));
  value(id).constant = std::move(constant);
  return id;
}

Node& Graph::AddNode(Node node, std::span<const std::string> output_names) {
  for (const std::string& output : output_names)
    node.outputs.push_back(output.empty() ? kNoValue : AddValue(output));
  nodes.push_back(std::move(node));
  return nodes.back();
}

std::vector<ValueId> Graph::Reads(const Node& node) const {
  std::vector<ValueId> out;
  for (const ValueId id : node.inputs)
    if (id != kNoValue) out.push_back(id);
  for (const auto& subgraph : node.Subgraphs())
    for (const Capture& capture : subgraph->captures) out.push_back(capture.outer);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status Graph::Sort() {
  // Topological order by Kahn's algorithm; ties go to the node that is first in the file.
  std::vector<int32_t> producer(values.size(), -1);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const ValueId id : nodes[n].outputs)
      if (id != kNoValue) producer[id] = static_cast<int32_t>(n);
  std::vector<int> waiting(nodes.size(), 0);
  std::vector<std::vector<int32_t>> users(nodes.size());
  bool sorted = true;
  for (size_t n = 0; n < nodes.size(); ++n)
    for (const ValueId id : Reads(nodes[n])) {
      const int32_t from = producer[id];
      if (from < 0) continue;
      ++waiting[n];
      users[from].push_back(static_cast<int32_t>(n));
      sorted = sorted && static_cast<size_t>(from) < n;
    }
  if (!sorted) {
    std::vector<int32_t> ready, order;
    const auto later = [](int32_t a, int32_t b) { return a > b; };
    for (size_t n = nodes.size(); n-- > 0;)
      if (waiting[n] == 0) ready.push_back(static_cast<int32_t>(n));
    std::make_heap(ready.begin(), ready.end(), later);
    while (!ready.empty()) {
      std::pop_heap(ready.begin(), ready.end(), later);
      const int32_t n = ready.back();
      ready.pop_back();
      order.push_back(n);
      for (const int32_t user : users[n])
        if (--waiting[user] == 0) {
          ready.push_back(user);
          std::push_heap(ready.begin(), ready.end(), later);
        }
    }
    if (order.size() != nodes.size()) {
      size_t stuck = 0;
      while (waiting[stuck] == 0) ++stuck;
      return Error::Corrupt("the graph has a cycle through ", nodes[stuck].Label());
    }
    std::vector<Node> moved;
    moved.reserve(nodes.size());
    for (const int32_t n : order) moved.push_back(std::move(nodes[n]));
    nodes = std::move(moved);
  }
  for (const Node& node : nodes)
    for (const auto& subgraph : node.Subgraphs()) CELER_RETURN_IF_ERROR(subgraph->Sort());
  return {};
}

namespace {

Status VerifyGraph(const Graph& graph, int depth) {
  constexpr int kMaxDepth = 32;
  if (depth > kMaxDepth) return Error::Corrupt("subgraphs nest more than ", kMaxDepth, " deep");
  const auto count = static_cast<ValueId>(graph.values.size());
  const auto exists = [&](ValueId id) { return id >= 0 && id < count; };
  std::vector<bool> made(graph.values.size(), false);
  const auto make = [&](ValueId id, const std::string& by) -> Status {
    if (!exists(id)) return Error::Corrupt(by, " makes the value ", id, " of ", count);
    if (made[id])
      return Error::Corrupt("the value '", Printable(graph.value(id).name),
                            "' has two producers, the second is ", by);
    made[id] = true;
    return {};
  };
  for (ValueId id = 0; id < count; ++id) {
    const auto& constant = graph.value(id).constant;
    if (!constant) continue;
    CELER_RETURN_IF_ERROR(make(id, "a constant"));
    const auto elements = constant->shape.elements();
    const auto bytes = elements ? BytesFor(constant->dtype, *elements) : std::nullopt;
    if (!bytes || static_cast<size_t>(*bytes) != constant->bytes.size())
      return Error::Corrupt("the constant '", Printable(graph.value(id).name), "' has ",
                            constant->bytes.size(), " bytes for ", constant->shape.ToString(), " of ",
                            Name(constant->dtype));
  }
  for (const ValueId id : graph.inputs) CELER_RETURN_IF_ERROR(make(id, "an input"));
  for (const Capture& capture : graph.captures) CELER_RETURN_IF_ERROR(make(capture.inner, "a capture"));
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      if (!exists(id)) return Error::Corrupt(node.Label(), " reads the value ", id, " of ", count);
      if (!made[id])
        return Error::Corrupt(node.Label(), " reads '", Printable(graph.value(id).name),
                              "', which no node before it produces");
    }
    for (const auto& subgraph : node.Subgraphs()) {
      for (const Capture& capture : subgraph->captures)
        if (!exists(capture.outer) || !made[capture.outer])
          return Error::Corrupt(node.Label(), ": its subgraph uses '",
                                Printable(subgraph->value(capture.inner).name),
                                "', which no node before it produces");
      if (const Status inner = VerifyGraph(*subgraph, depth + 1); !inner)
        return inner.error().WithContext(node.Label());
    }
    for (const ValueId id : node.outputs)
      if (id != kNoValue) CELER_RETURN_IF_ERROR(make(id, node.Label()));
  }
  for (const ValueId id : graph.outputs)
    if (!exists(id) || !made[id])
      return Error::Corrupt("the output '", exists(id) ? Printable(graph.value(id).name) : std::string("?"),
                            "' has no producer");
  return {};
}

struct PrintAttribute {
  int indent;
  std::string operator()(int64_t v) const { return std::to_string(v); }
  std::string operator()(float v) const { return std::to_string(v); }
  std::string operator()(const std::string& v) const { return "\"" + Printable(v, 40) + "\""; }
  template <class T>
  std::string operator()(const std::vector<T>& v) const {
    std::string out = "[";
    for (size_t i = 0; i < v.size() && i < 8; ++i) out += (i ? ", " : "") + (*this)(v[i]);
    return out + (v.size() > 8 ? ", ...]" : "]");
  }
  std::string operator()(const Constant& v) const { return std::string(Name(v.dtype)) + v.shape.ToString(); }
  std::string operator()(const std::shared_ptr<Graph>& v) const {
    return "{\n" + Print(*v, indent + 2) + "}";
  }
};

}  // namespace

Status Verify(const Graph& graph) {
  return VerifyGraph(graph, 0);
}

std::string Print(const Graph& graph, int indent) {
  const std::string space(static_cast<size_t>(indent), ' ');
  std::string out;
  const auto show = [&](ValueId id) {
    return id == kNoValue ? std::string("_") : "%" + Printable(graph.value(id).name);
  };
  const auto list = [&](const std::vector<ValueId>& ids) {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) text += (i ? ", " : "") + show(ids[i]);
    return text;
  };
  for (const ValueId id : graph.inputs)
    out += space + "input " + show(id) + ": " + ToString(graph.value(id).type) + "\n";
  for (const Value& value : graph.values)
    if (value.constant)
      out += space + "constant %" + Printable(value.name) + ": " + ToString(value.type) + "\n";
  for (const Node& node : graph.nodes) {
    out += space + list(node.outputs) + " = " + node.op + "(" + list(node.inputs) + ")";
    for (const auto& [key, attribute] : node.attributes)
      out += " " + Printable(key) + "=" + std::visit(PrintAttribute{indent}, attribute);
    out += "\n";
  }
  return out + space + "return " + list(graph.outputs) + "\n";
}

}  // namespace celer::graph
