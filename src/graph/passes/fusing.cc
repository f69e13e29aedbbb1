#include "graph/passes/fusing.h"

#include <limits>

#include "graph/ops/fast.h"

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

void MakeFused(Node& into) {
  into.domain = kCelerDomain;
  into.opset = 1;
}

void SetActivation(Node& into, const Activation& activation) {
  into.attributes.emplace_back("activation", activation.name);
  into.attributes.emplace_back("a", activation.a);
  into.attributes.emplace_back("b", activation.b);
}

void TakeOver(Rewriter& r, Node& into, Node& last) {
  const ValueId output = last.outputs[0];
  r.Remove(last);
  into.outputs[0] = output;
  r.Recount();
}

}  // namespace celer::graph
