// Which operators of a network become integer kernels, and which values get a quantizer.
//
// Three kinds of operators take part:
//   products      Conv, ConvTranspose, Gemm, MatMul with constant weights. A Relu or Clip behind one, or the
//                 bias behind a MatMul, is fused into its kernel: the value between them gets no quantizer.
//   elementwise   Add, Mul, Sigmoid and the like, between values that are quantized anyway. Several that make
//                 up a function of one value are one (functions.h).
//   passive       operators that only move, select or clip values: Reshape, MaxPool, Concat, Relu. Input and
//                 output share one scale (joint fixpoint), so that integers pass unchanged.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "graph/load/load_network.h"
#include "quantize/network/grid.h"

namespace celer::ptq {

using graph::kNoValue;
using graph::ValueId;

struct Layer {
  enum class Kind : uint8_t { kProduct, kElementwise, kPassive };

  size_t node = 0;   // of the graph
  std::string name;  // the node's, or that of its output; unique
  Kind kind = Kind::kPassive;
  std::vector<size_t> followers = {};  // nodes that the same kernel does, in order
  std::vector<size_t> data = {};       // which inputs are activations
  std::vector<ValueId> outputs = {};   // behind the last follower
  bool quantize_output = true;         // false: an output of the network stays real
};

struct QuantizerPlan {
  std::vector<Layer> layers;                      // in the order of the graph
  std::vector<ValueId> values;                    // that get a quantizer, in order
  std::map<ValueId, ValueId> group;               // values on one grid have one representative
  std::map<ValueId, std::vector<ValueId>> roots;  // of a group: values whose ranges decide
  std::set<ValueId> made;  // values that layers make: all who read them see rounded values
  int64_t candidates = 0;  // layers that are no passive ones, had none been kept as float

  bool empty() const;  // no product
  const Layer* Find(const std::string& name) const;
};

struct PlanOptions {
  std::set<std::string> floats = {};  // layers that stay as they are
  std::string only = {};              // one layer alone
  bool align_add = false;             // the inputs of an Add share a grid
  bool quantize_outputs = false;      // outputs of the network, too
  // Dynamic quantization of Gemm and MatMul alone: no value gets a quantizer.
  bool dynamic = false;
};

// What is known of every value of a prepared network before it runs.
struct ValueFacts {
  std::vector<bool> is_float;  // f32
  std::vector<std::vector<size_t>> readers;
  std::vector<int> maker;          // -1: an input, a constant, a capture
  std::vector<bool> kept;          // an output of the network, or read by a subgraph
  std::vector<std::string> names;  // of nodes as layers
};
ValueFacts FindValueFacts(const graph::Graph& graph);

QuantizerPlan MakePlan(const graph::Graph& graph, const ValueFacts& facts, const PlanOptions& options);

// Every value that some plan of this network may quantize.
std::vector<ValueId> Quantizable(const graph::Graph& graph, const ValueFacts& facts);

// The constant parts of a product.
struct Product {
  ValueId weight = kNoValue, bias = kNoValue;
  bool may_have_bias = true;  // MatMul has none of its own
  int axis = 0;               // of output channels in the weight; -1: they cannot have scales of their own
  int64_t outputs = 0;
  int64_t groups = 1;
  bool channels_last = false;  // the input's channels are its last dimension, not its second
};
// Nothing if the node is no product that integers can do.
std::optional<Product> MatchProduct(const graph::Graph& graph, const graph::Node& node);
// As above, for a dynamically quantized product.
std::optional<Product> MatchDynamicProduct(const graph::Graph& graph, const graph::Node& node);
ChannelLayout WeightLayout(const graph::Constant& weight, const Product& product, bool per_channel);

}  // namespace celer::ptq
