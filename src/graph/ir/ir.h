// The intermediate representation (IR) of a network: values, and nodes that make values from values.
// Operators have the names and semantics of ONNX; nothing else here knows where a graph came from.
//
// A graph is in static single assignment (SSA) form: each value is an input, a constant, captured from the
// outer graph, or the output of one node. After Sort() the nodes stand in topological order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"
#include "base/tensor_view.h"

namespace celer::graph {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;  // an optional input that is not given, an output that nobody wants

struct Dim {
  int64_t size = -1;   // -1: known only when the graph runs
  std::string symbol;  // its name, if it has one: equal names are equal sizes

  bool fixed() const { return size >= 0; }
};

struct ValueType {
  enum class Kind : uint8_t { kTensor, kSequence, kOptional };

  Kind kind = Kind::kTensor;
  std::optional<DType> dtype = {};             // of the tensor, or of the tensors inside
  std::optional<std::vector<Dim>> shape = {};  // nullopt: not even the rank is known
  bool of_sequence = false;                    // of an optional: it holds a sequence
};
std::string ToString(const ValueType& type);  // "f32[N, 3, 224, 224]"

// Constant elements. Dense; `owner` keeps them alive: the mapped file, or a copy.
struct Constant {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;

  TensorView view() const {
    return TensorView::Contiguous(const_cast<std::byte*>(bytes.data()), dtype, Device::Cpu(), shape);
  }
};

class Graph;
using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
                               std::vector<std::string>, Constant, std::shared_ptr<Graph>>;

struct Node {
  std::string op;
  std::string domain = {};  // "": the operators every ONNX model may use
  std::string name = {};
  int opset = 0;  // whose meaning of `op` is meant
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  std::vector<std::pair<std::string, Attribute>> attributes = {};

  const Attribute* Find(std::string_view key) const;
  template <class T>
  const T* Get(std::string_view key) const {
    const Attribute* const found = Find(key);
    return found ? std::get_if<T>(found) : nullptr;
  }
  int64_t Int(std::string_view key, int64_t otherwise) const;
  float Float(std::string_view key, float otherwise) const;
  std::string Text(std::string_view key, std::string_view otherwise) const;
  std::vector<int64_t> Ints(std::string_view key) const;  // empty if it is not there
  std::vector<float> Floats(std::string_view key) const;
  std::vector<std::string> Texts(std::string_view key) const;
  std::vector<std::shared_ptr<Graph>> Subgraphs() const;
  // "Conv 'features.0'": for error sentences.
  std::string Label() const;
};

struct Value {
  std::string name;
  ValueType type;
  std::optional<Constant> constant;
};

// A value of the outer graph that a subgraph uses.
struct Capture {
  ValueId outer;
  ValueId inner;
};

class Graph {
 public:
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<ValueId> inputs, outputs;
  std::vector<Capture> captures;  // of a subgraph

  ValueId AddValue(std::string value_name, ValueType type = {});
  ValueId AddInput(std::string value_name, ValueType type);
  ValueId AddConstant(std::string value_name, Constant constant);
  // Makes its outputs too, by name.
  Node& AddNode(Node node, std::span<const std::string> output_names);

  const Value& value(ValueId id) const { return values[id]; }
  Value& value(ValueId id) { return values[id]; }

  // The values a node reads: its inputs, and what its subgraphs capture.
  std::vector<ValueId> Reads(const Node& node) const;

  // Puts nodes in topological order, subgraphs too; an error for a cycle.
  Status Sort();
};

// One sentence about the first thing that is wrong: ids out of range, a value made twice or never, nodes out
// of order, a type that a constant contradicts.
Status Verify(const Graph& graph);

// For people: one line per value and node.
std::string Print(const Graph& graph, int indent = 0);

}  // namespace celer::graph
