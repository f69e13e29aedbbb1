#include "graph/passes/fusing.h"

#include <cstdint>
#include <limits>

#include "graph/ops/fast/fast.h"

namespace celer::graph {

std::optional<Activation> ActivationOf(Rewriter& r, const Node& node) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!node.domain.empty() || node.inputs.empty()) return std::nullopt;
  if (node.op == "Relu") return Activation{"clip", 0, kInfinity};
  if (node.op == "Sigmoid") return Activation{"sigmoid"};
  if (node.op == "Tanh") return Activation{"tanh"};
  if (node.op == "HardSwish") return Activation{"hard_swish"};
  if (node.op == "Swish" && node.Float("alpha", 1) == 1) return Activation{"silu"};
  if (node.op == "LeakyRelu") return Activation{"leaky_relu", node.Float("alpha", 0.01f)};
  if (node.op == "HardSigmoid")
    return Activation{"hard_sigmoid", node.Float("alpha", 0.2f), node.Float("beta", 0.5f)};
  if (node.op == "Gelu") return Activation{node.Text("approximate", "none") == "tanh" ? "gelu_tanh" : "gelu"};
  if (node.op == "Clip") {
    Activation clip{"clip", node.Float("min", -kInfinity), node.Float("max", kInfinity)};
    for (const size_t i : {size_t{1}, size_t{2}}) {
      if (i >= node.inputs.size() || node.inputs[i] == kNoValue) continue;
      const auto bound = r.Scalar(node.inputs[i]);
      if (!bound) return std::nullopt;
      (i == 1 ? clip.a : clip.b) = static_cast<float>(*bound);
    }
    return clip;
  }
  return std::nullopt;
}

bool HasConstantWeights(Rewriter& r, const Node& conv) {
  if (conv.inputs.size() < 2) return false;
  const Constant* const weights = r.ConstantOf(conv.inputs[1]);
  if (!weights || weights->dtype != DType::kF32 || weights->shape.rank() < 3 || conv.Int("group", 1) < 1)
    return false;
  if (conv.inputs.size() < 3 || conv.inputs[2] == kNoValue) return true;
  const Constant* const bias = r.ConstantOf(conv.inputs[2]);
  return bias && bias->dtype == DType::kF32;
}

Node* SingleUseConv(Rewriter& r, ValueId value) {
  Node* conv = r.SingleUseProducer(value, "Conv");
  if (!conv) conv = r.SingleUseProducer(value, "ConvTranspose");
  return conv && HasConstantWeights(r, *conv) ? conv : nullptr;
}

int64_t OutputChannels(Rewriter& r, const Node& conv) {
  const Shape& weights = r.ConstantOf(conv.inputs[1])->shape;
  // The weights of a transposed convolution are [in, out / groups, ...].
  return conv.op == "ConvTranspose" ? weights[1] * conv.Int("group", 1) : weights[0];
}

bool ScaleOutputs(Rewriter& r, Node& conv, const ChannelScale& by) {
  const Constant& weight = *r.ConstantOf(conv.inputs[1]);
  const std::vector<int64_t> dims(weight.shape.dims().begin(), weight.shape.dims().end());
  const bool transposed = conv.op == "ConvTranspose";
  const int64_t groups = conv.Int("group", 1), channels = OutputChannels(r, conv);
  const bool has_bias = conv.inputs.size() > 2 && conv.inputs[2] != kNoValue;
  std::vector<float> bias(static_cast<size_t>(channels), 0.0f);
  if (has_bias) bias = FloatsOf(*r.ConstantOf(conv.inputs[2]));
  if (bias.size() != by.factor.size() || static_cast<int64_t>(bias.size()) != channels ||
      by.shift.size() != by.factor.size() || (transposed && dims[0] % groups != 0))
    return false;
  for (size_t c = 0; c < bias.size(); ++c) bias[c] = bias[c] * by.factor[c] + by.shift[c];
  std::vector<float> weights = FloatsOf(weight);
  int64_t inner = 1;
  for (size_t i = 2; i < dims.size(); ++i) inner *= dims[i];
  const int64_t per_in = transposed ? dims[0] / groups : 0;
  for (int64_t a = 0; a < dims[0]; ++a)
    for (int64_t b = 0; b < dims[1]; ++b) {
      const int64_t channel = transposed ? a / per_in * dims[1] + b : a;
      for (int64_t k = 0; k < inner; ++k) weights[(a * dims[1] + b) * inner + k] *= by.factor[channel];
    }
  const ValueId new_weight = r.AddFloats(conv.name + ".weight", dims, weights),
                new_bias = r.AddFloats(conv.name + ".bias", {channels}, bias);
  conv.inputs.resize(3);
  conv.inputs[1] = new_weight;
  conv.inputs[2] = new_bias;
  return true;
}

void MakeFused(Node& into) {
  into.domain = kCelerDomain;
  into.opset = 1;
}

void SetActivation(Node& into, const Activation& activation) {
  into.attributes.emplace_back("activation", activation.name);
  into.attributes.emplace_back("a", activation.a);
  into.attributes.emplace_back("b", activation.b);
}

namespace {

bool IsFusedProduct(const Node& node) {
  return node.domain == kCelerDomain && node.op == "MatMul";
}

// A Gemm that is a plain product with a bias per column.
bool IsPlainGemm(Rewriter& r, const Node& gemm) {
  if (gemm.Float("alpha", 1) != 1 || gemm.Float("beta", 1) != 1 || gemm.Int("transA", 0) != 0) return false;
  if (gemm.inputs.size() < 3 || gemm.inputs[2] == kNoValue) return true;
  const Constant *const bias = r.ConstantOf(gemm.inputs[2]), *const weights = r.ConstantOf(gemm.inputs[1]);
  return bias && bias->dtype == DType::kF32 && bias->shape.rank() == 1 &&
         bias->shape[0] == weights->shape[gemm.Int("transB", 0) != 0 ? 0 : 1];
}

}  // namespace

bool IsConstantProduct(Rewriter& r, const Node& node) {
  const bool plain = node.domain.empty() && (node.op == "MatMul" || node.op == "Gemm");
  if (!plain && !IsFusedProduct(node)) return false;
  const Constant* const weights = r.ConstantOf(node.inputs[1]);
  if (!weights || weights->dtype != DType::kF32 || weights->shape.rank() != 2) return false;
  return !plain || node.op == "MatMul" || IsPlainGemm(r, node);
}

void MakeProduct(Node& node) {
  if (IsFusedProduct(node)) return;
  const int64_t transposed = node.op == "Gemm" ? node.Int("transB", 0) : 0;
  node.op = "MatMul";
  MakeFused(node);
  node.attributes.clear();
  if (transposed != 0) node.attributes.emplace_back("transB", transposed);
}

void TakeOver(Rewriter& r, Node& into, Node& last) {
  const ValueId output = last.outputs[0];
  r.Remove(last);
  into.outputs[0] = output;
  r.Recount();
}

}  // namespace celer::graph
