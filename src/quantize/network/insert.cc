#include "quantize/network/insert.h"

#include <algorithm>
#include <cmath>

#include "graph/passes/pass.h"
#include "quantize/network/make_constant.h"

namespace celer::ptq {
namespace {

using graph::Constant;
using graph::Graph;
using graph::Node;

constexpr int kOpset = 13;  // the first in which weights may have a scale per channel

class Inserter {
 public:
  Inserter(const graph::Network& network, const QuantizerPlan& plan, const Grids& grids,
           const InsertOptions& options)
      : before_(network.graph), plan_(plan), grids_(grids), options_(options) {
    out_.network = network;
    out_.network.opset = std::max(network.opset, kOpset);
  }

  Result<Inserted> Make() {
    for (const ValueId id : plan_.values) AddQdqPair(id);
    for (const Layer& layer : plan_.layers) {
      // Captures of subgraphs and outputs of the network keep what was there.
      for (const size_t i : layer.data) {
        const ValueId from = before_.nodes[layer.node].inputs[i], to = out_.rounded.at(from);
        graph().nodes[layer.node].inputs[i] = to;
        for (const size_t follower : layer.followers)  // x * sigmoid(x) reads x twice
          std::replace(graph().nodes[follower].inputs.begin(), graph().nodes[follower].inputs.end(), from,
                       to);
      }
      if (layer.kind == Layer::Kind::kProduct) QuantizeProduct(layer);
    }
    for (size_t n = 0; n < before_.nodes.size(); ++n)
      for (ValueId& id : graph().nodes[n].inputs)
        if (plan_.made.contains(id)) id = out_.rounded.at(id);
    CELER_RETURN_IF_ERROR(graph().Sort());
    CELER_RETURN_IF_ERROR(graph::Verify(graph()));
    return std::move(out_);
  }

 private:
  Graph& graph() { return out_.network.graph; }

  ValueId AddNode(const char* op, std::vector<ValueId> inputs, const std::string& name,
                  const std::string& output, int64_t axis = -1) {
    Node node{.op = op, .name = name, .opset = kOpset, .inputs = std::move(inputs)};
    if (axis >= 0) node.attributes.emplace_back("axis", axis);
    return graph().AddNode(std::move(node), std::span(&output, 1)).outputs[0];
  }

  ValueId ZeroPoint(const std::string& name, const Grid& grid) {
    if (grid.dtype == DType::kU8)
      return graph().AddConstant(
          name, MakeConstant<uint8_t>(grid.dtype, Shape{}, {static_cast<uint8_t>(grid.zero)}));
    return graph().AddConstant(name,
                               MakeConstant<int8_t>(grid.dtype, Shape{}, {static_cast<int8_t>(grid.zero)}));
  }

  void AddQdqPair(ValueId id) {
    const Grid& grid = grids_.at(id);
    const std::string name = graph().value(id).name;
    const ValueId scale = graph().AddConstant(name + "_scale",
                                              MakeConstant<float>(DType::kF32, Shape{}, {grid.scale})),
                  zero = ZeroPoint(name + "_zero_point", grid);
    const ValueId whole =
        AddNode("QuantizeLinear", {id, scale, zero}, name + "_QuantizeLinear", name + "_quantized");
    const ValueId rounded =
        AddNode("DequantizeLinear", {whole, scale, zero}, name + "_DequantizeLinear", name + "_dequantized");
    out_.rounded[id] = rounded;
    // What the file says about shapes holds for these, too: writing newer opsets needs some.
    graph().value(whole).type = graph().value(rounded).type = graph().value(id).type;
    graph().value(whole).type.dtype = grid.dtype;
  }

  // A constant of integers with its scales; the value that readers see.
  ValueId AddQuantizedConstant(const std::string& name, Constant whole, std::vector<float> scale, int axis) {
    const auto channels = static_cast<int64_t>(scale.size());
    const bool one = channels == 1 && axis < 0;
    const DType dtype = whole.dtype;
    const Shape shape = one ? Shape{} : Shape{channels};
    const size_t zeros = scale.size();
    const ValueId scales =
        graph().AddConstant(name + "_scale", MakeConstant(DType::kF32, shape, std::move(scale)));
    const ValueId zero =
        graph().AddConstant(name + "_zero_point",
                            dtype == DType::kI8 ? MakeConstant(dtype, shape, std::vector<int8_t>(zeros, 0))
                                                : MakeConstant(dtype, shape, std::vector<int32_t>(zeros, 0)));
    const ValueId stored = graph().AddConstant(name + "_quantized", std::move(whole));
    return AddNode("DequantizeLinear", {stored, scales, zero}, name + "_DequantizeLinear",
                   name + "_dequantized", one ? -1 : axis);
  }

  void QuantizeProduct(const Layer& layer) {
    const Product product = *MatchProduct(before_, before_.nodes[layer.node]);
    const Constant& weight = *before_.value(product.weight).constant;
    const std::vector<float> weights = graph::FloatsOf(weight);
    const std::string& name = before_.value(product.weight).name;
    const ChannelLayout layout = WeightLayout(weight, product, options_.per_channel);
    const bool per_channel = options_.per_channel && product.axis >= 0;
    const Grid& input = grids_.at(before_.nodes[layer.node].inputs[0]);
    std::vector<double> bias(static_cast<size_t>(product.outputs), 0.0);
    if (product.bias != kNoValue) {
      const std::vector<float> old = graph::FloatsOf(*before_.value(product.bias).constant);
      std::copy(old.begin(), old.end(), bias.begin());
    }
    // A bias of up to 2^30 steps leaves room for the accumulator.
    std::vector<double> least(static_cast<size_t>(layout.channels), 0.0);
    for (size_t o = 0; o < bias.size(); ++o) {
      double& bound = least[per_channel ? o : 0];
      bound = std::max(bound, std::abs(bias[o]) / double{input.scale} * 0x1p-30);
    }
    QuantizedWeights rounded = QuantizeWeights(weights, layout, options_.power_of_two, least);
    bool has_bias = product.bias != kNoValue;
    std::vector<double> shift;
    if (options_.means)
      if (const auto at = options_.means->find(layer.node); at != options_.means->end())
        shift = MeanShift(weight, product, rounded, layout, at->second);
    if (!shift.empty() && product.may_have_bias) {
      for (size_t o = 0; o < bias.size(); ++o) bias[o] -= shift[o];
      has_bias = true;
    }
    if (!shift.empty() && !product.may_have_bias) ShiftFollower(layer, shift);
    if (has_bias) {
      std::vector<int32_t> whole;
      std::vector<float> scales;
      for (const float scale : rounded.scale) scales.push_back(scale * input.scale);
      for (size_t o = 0; o < bias.size(); ++o) {
        const double steps = bias[o] / double{scales[per_channel ? o : 0]};
        whole.push_back(static_cast<int32_t>(std::clamp(std::nearbyint(steps), -0x1p31 + 1, 0x1p31 - 1)));
      }
      const Shape shape{product.outputs};
      const std::string bias_name =
          product.bias != kNoValue ? before_.value(product.bias).name : name + "_bias";
      const ValueId made = AddQuantizedConstant(bias_name, MakeConstant(DType::kI32, shape, std::move(whole)),
                                                std::move(scales), per_channel ? 0 : -1);
      graph().nodes[layer.node].inputs.resize(3, kNoValue);
      graph().nodes[layer.node].inputs[2] = made;
    }
    const ValueId made =
        AddQuantizedConstant(name, MakeConstant(DType::kI8, weight.shape, std::move(rounded.q)),
                             std::move(rounded.scale), per_channel ? product.axis : -1);
    graph().nodes[layer.node].inputs[1] = made;
  }

  // The bias behind a MatMul is an Add of its own.
  void ShiftFollower(const Layer& layer, const std::vector<double>& shift) {
    if (layer.followers.empty() || graph().nodes[layer.followers[0]].op != "Add") return;
    Node& add = graph().nodes[layer.followers[0]];
    for (ValueId& id : add.inputs) {
      const auto& constant = graph().value(id).constant;
      if (!constant) continue;
      std::vector<float> numbers = graph::FloatsOf(*constant);
      if (numbers.size() != shift.size()) return;
      for (size_t o = 0; o < numbers.size(); ++o) numbers[o] -= static_cast<float>(shift[o]);
      const Shape shape = constant->shape;
      const std::string name = graph().value(id).name + "_corrected";
      id = graph().AddConstant(name, MakeConstant(DType::kF32, shape, std::move(numbers)));
      return;
    }
  }

  const Graph& before_;
  const QuantizerPlan& plan_;
  const Grids& grids_;
  const InsertOptions& options_;
  Inserted out_;
};

}  // namespace

std::vector<double> MeanShift(const Constant& weight, const Product& product, const QuantizedWeights& rounded,
                              const ChannelLayout& layout, const std::vector<float>& means) {
  const std::vector<float> weights = graph::FloatsOf(weight);
  std::vector<double> out(static_cast<size_t>(product.outputs), 0.0);
  const Shape& shape = weight.shape;
  const auto miss = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    return static_cast<double>(rounded.q[at]) * double{rounded.scale[layout.channel(i)]} -
           double{weights[at]};
  };
  if (product.channels_last) {  // [inputs, outputs], or the other way round
    const int64_t columns = shape[1];
    for (int64_t i = 0; i < shape[0] * columns; ++i) {
      const int64_t row = i / columns, column = i % columns;
      const int64_t output = product.axis == 0 ? row : column, input = product.axis == 0 ? column : row;
      if (static_cast<size_t>(input) >= means.size()) return {};
      out[output] += miss(i) * double{means[input]};
    }
    return out;
  }
  if (product.axis != 0) return {};  // transposed: which outputs an input reaches depends on the stride
  const int64_t per_group = shape[1], inner = *shape.elements() / (shape[0] * shape[1]),
                outputs_per_group = shape[0] / product.groups;
  if (static_cast<int64_t>(means.size()) != per_group * product.groups) return {};
  for (int64_t i = 0; i < *shape.elements(); ++i) {
    const int64_t output = i / (per_group * inner), input = i / inner % per_group;
    const int64_t channel = output / outputs_per_group * per_group + input;
    out[output] += miss(i) * double{means[channel]};
  }
  return out;
}

Result<Inserted> InsertQuantizers(const graph::Network& network, const QuantizerPlan& plan,
                                  const Grids& grids, const InsertOptions& options) {
  return Inserter(network, plan, grids, options).Make();
}

}  // namespace celer::ptq
