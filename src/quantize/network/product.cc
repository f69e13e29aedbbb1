// Which products can be quantized, and the layout of their weights.
#include "graph/passes/pass.h"
#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {
namespace {

using graph::Constant;
using graph::Graph;
using graph::Node;

const Constant* FloatConstant(const Graph& graph, const Node& node, size_t input) {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue) return nullptr;
  const auto& constant = graph.value(node.inputs[input]).constant;
  return constant && constant->dtype == DType::kF32 ? &*constant : nullptr;
}

bool Given(const Node& node, size_t input) {
  return input < node.inputs.size() && node.inputs[input] != kNoValue;
}

}  // namespace

std::optional<Product> MatchProduct(const Graph& graph, const Node& node) {
  if (!node.domain.empty() || node.inputs.size() < 2 || node.inputs[0] == kNoValue ||
      graph.value(node.inputs[0]).constant)
    return std::nullopt;
  const Constant* const weight = FloatConstant(graph, node, 1);
  if (!weight || weight->bytes.empty()) return std::nullopt;
  Product out;
  out.weight = node.inputs[1];
  const int rank = weight->shape.rank();
  if (node.op == "Conv" || node.op == "ConvTranspose") {
    if (rank < 3) return std::nullopt;
    out.groups = node.Int("group", 1);
    const bool transposed = node.op == "ConvTranspose";
    out.outputs = transposed ? weight->shape[1] * out.groups : weight->shape[0];
    // With groups, output channels of a transposed convolution are spread over two dimensions.
    out.axis = !transposed ? 0 : out.groups == 1 ? 1 : -1;
    if (out.groups < 1 || weight->shape[0] % out.groups != 0) return std::nullopt;
  } else if (node.op == "Gemm") {
    if (rank != 2 || node.Float("alpha", 1) != 1 || node.Float("beta", 1) != 1 || node.Int("transA", 0) != 0)
      return std::nullopt;
    out.axis = node.Int("transB", 0) != 0 ? 0 : 1;
    out.outputs = weight->shape[out.axis];
    out.channels_last = true;
  } else if (node.op == "MatMul") {
    if (rank != 2) return std::nullopt;
    out.axis = 1;
    out.outputs = weight->shape[1];
    out.channels_last = true;
    out.may_have_bias = false;
    return out;
  } else {
    return std::nullopt;
  }
  if (Given(node, 2)) {
    const Constant* const bias = FloatConstant(graph, node, 2);
    if (!bias || bias->shape.elements() != out.outputs) return std::nullopt;
    if (bias->shape.rank() > 1 && bias->shape[bias->shape.rank() - 1] != out.outputs) return std::nullopt;
    out.bias = node.inputs[2];
  }
  return out;
}

std::optional<Product> MatchDynamicProduct(const Graph& graph, const Node& node) {
  // Fewer columns take less time than quantizing the input for them; longer sums may overflow 32 bits.
  constexpr int64_t kLeastColumns = 16, kMostTerms = 32768;
  if (node.op != "Gemm" && node.op != "MatMul") return std::nullopt;
  auto out = MatchProduct(graph, node);
  if (!out || out->outputs < kLeastColumns) return std::nullopt;
  const Shape& weight = graph.value(out->weight).constant->shape;
  if (weight[1 - out->axis] > kMostTerms) return std::nullopt;
  return out;
}

ChannelLayout WeightLayout(const Constant& weight, const Product& product, bool per_channel) {
  ChannelLayout out;
  const Shape& shape = weight.shape;
  if (!per_channel || product.axis < 0) {
    out.inner = *shape.elements();
    return out;
  }
  for (int i = 0; i < shape.rank(); ++i)
    (i < product.axis ? out.outer : i == product.axis ? out.channels : out.inner) *= shape[i];
  return out;
}

}  // namespace celer::ptq
