// Operators of com.microsoft, which ONNX Runtime's optimizer and quantizer write into files, decomposed into
// the ONNX operators that they were made of. A row each; passes then fuse them again, for the kernels that
// are here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "graph/passes/pass.h"

namespace celer::graph {

// Builds the nodes that replace one node.
class Expansion {
 public:
  using Attributes = std::vector<std::pair<std::string, Attribute>>;
  static constexpr int kOpset = 18;

  // `nodes` are those before the node, in order; what is built goes behind them.
  Expansion(Graph* graph, std::vector<Node>* nodes) : graph_(*graph), nodes_(*nodes) {}

  void Begin(Node node);
  const Node& node() const { return node_; }

  // The first thing that is wrong with this node. What is built after it does not matter.
  template <class... T>
  ValueId Fail(const T&... parts) {
    if (!error_) error_ = Error::Unsupported(node_.Label(), ": ", parts...);
    return kNoValue;
  }
  const std::optional<Error>& error() const { return error_; }

  // --- the node ---
  bool Has(size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != kNoValue; }
  ValueId In(size_t i) const { return Has(i) ? node_.inputs[i] : kNoValue; }
  bool Wants(size_t i) const { return i < node_.outputs.size() && node_.outputs[i] != kNoValue; }
  // Its attributes but those whose names begin so.
  Attributes AttributesBut(std::initializer_list<std::string_view> prefixes) const;

  // --- what is known of a value ---
  const Constant* ConstantOf(ValueId value) const;
  std::optional<int64_t> Rank(ValueId value);
  DType TypeOf(ValueId value);  // f32 if nothing is known
  // Surely this many columns; nullopt where only a run says so.
  std::optional<int64_t> Columns(ValueId value) const { return Columns(value, 0); }

  // --- building ---
  ValueId Add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
              int opset = kOpset);
  std::vector<ValueId> AddMany(std::string_view op, std::vector<ValueId> inputs, size_t outputs,
                               Attributes attributes = {}, int opset = kOpset);
  ValueId Ints(const std::vector<int64_t>& numbers);
  ValueId Int(int64_t number);                 // a scalar
  ValueId Float(double number, ValueId like);  // a scalar of that value's type
  ValueId AddConstant(Constant constant);
  ValueId SizeOf(ValueId value, int64_t axis);  // a list of one; the axis counts from the front
  ValueId ScalarSizeOf(ValueId value, int64_t axis);
  ValueId Transpose(ValueId value, std::vector<int64_t> order);
  // Output i of the node is this value.
  void Give(size_t i, ValueId value);

 private:
  std::optional<int64_t> Columns(ValueId value, int depth) const;
  const SampleShapes& Samples(ValueId value);

  Graph& graph_;
  std::vector<Node>& nodes_;
  Node node_;
  size_t begin_ = 0;  // of this node's among nodes_
  int made_ = 0;
  std::optional<Error> error_;
  SampleShapes samples_;
  size_t sampled_nodes_ = 0;
};

struct ExpansionRow {
  std::string_view domain, op;
  void (*expand)(Expansion&);
  int until = 0;                                                 // the last opset that it is for; 0: all
  bool (*fits)(const Graph& graph, const Node& node) = nullptr;  // those that do not are left as they are
};

const ExpansionRow* FindExpansion(std::span<const ExpansionRow> rows, const Graph& graph, const Node& node);

// Replaces the nodes that the rows name. Topological order is kept. Returns how many.
Result<int> ExpandNodes(Graph* graph, std::span<const ExpansionRow> rows, bool subgraphs);

// All of com.microsoft, and what ONNX Runtime writes into ONNX's own domain.
Status ExpandMicrosoft(Graph* graph);
// Names of the operators that the rows of ExpandMicrosoft know; for docs/operators.md.
std::vector<std::string_view> MicrosoftOperators();

// One per file.
std::span<const ExpansionRow> FusedExpansions();
std::span<const ExpansionRow> AttentionExpansions();
std::span<const ExpansionRow> QuantizedExpansions();

// x by the name of an activation; alpha and beta are those of the ONNX operator.
ValueId Activate(Expansion& e, ValueId x, std::string_view name, std::optional<float> alpha,
                 std::optional<float> beta);

// QLinearConv and QLinearMatMul as operators between DequantizeLinear and QuantizeLinear.
void ExpandQLinearConv(Expansion& e);
void ExpandQLinearMatMul(Expansion& e);

// The pass that rewrites those two of ONNX itself.
Result<int> ExpandQLinear(Rewriter& r, const std::function<void(std::string)>& explain);

// What Attention and QAttention share: from [batch, tokens, q + k + v] on.
struct PackedAttention {
  ValueId qkv = kNoValue;
  std::vector<int64_t> sizes;  // of q, k and v
  ValueId mask = kNoValue, past = kNoValue, bias = kNoValue;
};
void AttendPacked(Expansion& e, const PackedAttention& a);

}  // namespace celer::graph
