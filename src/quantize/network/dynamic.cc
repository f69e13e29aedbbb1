#include "quantize/network/dynamic.h"

#include <algorithm>
#include <array>
#include <map>

#include "graph/passes/pass.h"
#include "quantize/network/make_constant.h"

namespace celer::ptq {
namespace {

using graph::Constant;
using graph::Graph;
using graph::Node;

constexpr int kOpset = 11;  // the first that has DynamicQuantizeLinear

class Inserter {
 public:
  Inserter(const graph::Network& network, bool per_channel)
      : before_(network.graph), per_channel_(per_channel) {
    out_.network = network;
    out_.network.opset = std::max(network.opset, kOpset);
  }

  Result<Inserted> Make(const QuantizerPlan& plan) {
    for (const Layer& layer : plan.layers) Replace(layer.node);
    CELER_RETURN_IF_ERROR(graph().Sort());
    CELER_RETURN_IF_ERROR(graph::Verify(graph()));
    return std::move(out_);
  }

 private:
  struct Input {
    ValueId bytes = kNoValue, scale = kNoValue, zero = kNoValue;
  };
  struct Weight {
    ValueId whole = kNoValue, scale = kNoValue, zero = kNoValue;  // [k, n], [n] or one, likewise
  };

  Graph& graph() { return out_.network.graph; }

  ValueId AddNode(const char* op, std::vector<ValueId> inputs, const std::string& name, int opset = 13) {
    const std::string output = name + "_output";
    return graph()
        .AddNode({.op = op, .name = name, .opset = opset, .inputs = std::move(inputs)}, std::span(&output, 1))
        .outputs[0];
  }

  const Input& Rounded(ValueId x) {
    const auto [at, first] = inputs_.try_emplace(x);
    if (!first) return at->second;
    const std::string name = graph().value(x).name;
    const std::array<std::string, 3> names = {name + "_quantized", name + "_scale", name + "_zero_point"};
    const Node& node = graph().AddNode(
        {.op = "DynamicQuantizeLinear", .name = name + "_QuantizeLinear", .opset = kOpset, .inputs = {x}},
        names);
    at->second = {node.outputs[0], node.outputs[1], node.outputs[2]};
    return at->second;
  }

  const Weight& Rounded(const Product& product) {
    const auto [at, first] = weights_.try_emplace({product.weight, product.axis});
    if (!first) return at->second;
    const Constant& weight = *before_.value(product.weight).constant;
    QuantizedWeights rounded =
        FitWeights(graph::FloatsOf(weight), WeightLayout(weight, product, per_channel_));
    const int64_t n = product.outputs, k = weight.shape[1 - product.axis];
    if (product.axis == 0) {
      std::vector<int8_t> turned(rounded.q.size());
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < k; ++j) turned[j * n + i] = rounded.q[i * k + j];
      rounded.q = std::move(turned);
    }
    const std::string name = before_.value(product.weight).name;
    const Shape scales = per_channel_ ? Shape{n} : Shape{};
    std::vector<int8_t> zeros(rounded.scale.size(), 0);
    at->second = {
        graph().AddConstant(name + "_quantized", MakeConstant(DType::kI8, Shape{k, n}, std::move(rounded.q))),
        graph().AddConstant(name + "_scale", MakeConstant(DType::kF32, scales, std::move(rounded.scale))),
        graph().AddConstant(name + "_zero_point", MakeConstant(DType::kI8, scales, std::move(zeros)))};
    return at->second;
  }

  // The node becomes the last of those that stand in its place.
  void Replace(size_t n) {
    const Node node = graph().nodes[n];
    const Product product = *MatchDynamicProduct(before_, before_.nodes[n]);
    const std::string name = node.name.empty() ? graph().value(node.outputs[0]).name : node.name;
    const Input x = Rounded(node.inputs[0]);
    const Weight w = Rounded(product);
    const ValueId sums = AddNode("MatMulInteger", {x.bytes, w.whole, x.zero, w.zero}, name + "_quant", 10);
    const ValueId reals = AddNode("Cast", {sums}, name + "_cast");
    graph().nodes.back().attributes.emplace_back("to", int64_t{1});
    const ValueId scale = AddNode("Mul", {x.scale, w.scale}, name + "_scales_mul");
    Node last{.op = "Mul", .name = name + "_output_scale_mul", .opset = 13, .inputs = {reals, scale}};
    if (product.bias != kNoValue) {
      const ValueId scaled = AddNode("Mul", last.inputs, last.name);
      last = {.op = "Add", .name = name + "_bias", .opset = 13, .inputs = {scaled, product.bias}};
    }
    last.outputs = node.outputs;
    graph().nodes[n] = std::move(last);
  }

  const Graph& before_;
  bool per_channel_;
  std::map<ValueId, Input> inputs_;
  std::map<std::pair<ValueId, int>, Weight> weights_;
  Inserted out_;
};

}  // namespace

Result<Inserted> InsertDynamic(const graph::Network& network, const QuantizerPlan& plan, bool per_channel) {
  return Inserter(network, per_channel).Make(plan);
}

}  // namespace celer::ptq
