// A convolution adds, and applies a function, while its sums are still in registers.
#include <limits>

#include "graph/ops/fast.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

struct Activation {
  std::string name;
  float a = 0, b = 0;
};

// The function that this node applies to its first input, if it is one that can follow a convolution.
std::optional<Activation> ActivationOf(Rewriter& r, const Node& node) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!node.domain.empty()) return std::nullopt;
  if (node.op == "Relu") return Activation{"clip", 0, kInfinity};
  if (node.op == "Sigmoid") return Activation{"sigmoid"};
  if (node.op == "Tanh") return Activation{"tanh"};
  if (node.op == "HardSwish") return Activation{"hard_swish"};
  if (node.op == "LeakyRelu") return Activation{"leaky_relu", node.Float("alpha", 0.01f)};
  if (node.op == "HardSigmoid")
    return Activation{"hard_sigmoid", node.Float("alpha", 0.2f), node.Float("beta", 0.5f)};
  if (node.op == "Gelu" && node.Text("approximate", "none") == "none") return Activation{"gelu"};
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

// A convolution of images with constant f32 weights that does nothing more yet; `readers` of its output.
Node* PlainConv(Rewriter& r, ValueId value, int readers) {
  if (r.Readers(value) != readers) return nullptr;
  const int maker = r.MakerOf(value);
  if (maker < 0) return nullptr;
  Node& conv = r.node(static_cast<size_t>(maker));
  const bool fused = conv.domain == kCelerDomain;
  if (conv.op != "Conv" || (!conv.domain.empty() && !fused) ||
      (fused && !conv.Text("activation", "").empty()))
    return nullptr;
  const Constant* const weights = r.ConstantOf(conv.inputs[1]);
  return weights && weights->dtype == DType::kF32 && weights->shape.rank() == 4 ? &conv : nullptr;
}

void MakeFused(Node& conv) {
  conv.domain = kCelerDomain;
  conv.opset = 1;
}

// `last` is done by the convolution, which makes what it made.
void TakeOver(Rewriter& r, Node& conv, Node& last) {
  const ValueId output = last.outputs[0];
  r.Remove(last);
  conv.outputs[0] = output;
  r.Recount();
}

// Both have the same known shape, so that nothing is repeated.
bool SameShape(Rewriter& r, ValueId a, ValueId b) {
  const auto &x = r.graph().value(a).type.shape, &y = r.graph().value(b).type.shape;
  if (!x || !y || x->size() != y->size()) return false;
  for (size_t i = 0; i < x->size(); ++i) {
    const Dim &p = (*x)[i], &q = (*y)[i];
    const bool same = p.fixed() ? p.size == q.size : !p.symbol.empty() && p.symbol == q.symbol;
    if (!same) return false;
  }
  return true;
}

}  // namespace

Result<int> FuseActivation(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).inputs.empty()) continue;
    if (const auto activation = ActivationOf(r, r.node(n))) {
      Node* const conv = PlainConv(r, r.node(n).inputs[0], 1);
      if (!conv) continue;
      explain(r.node(n).Label() + " is done by " + conv->Label());
      MakeFused(*conv);
      conv->attributes.emplace_back("activation", activation->name);
      conv->attributes.emplace_back("a", activation->a);
      conv->attributes.emplace_back("b", activation->b);
      TakeOver(r, *conv, r.node(n));
      ++changes;
      continue;
    }
    if (!r.node(n).domain.empty() || r.node(n).inputs.size() != 2) continue;
    if (r.node(n).op == "Mul") {  // x sigmoid(x)
      for (const size_t i : {size_t{0}, size_t{1}}) {
        const ValueId x = r.node(n).inputs[i];
        Node* const sigmoid = r.OnlyFor(r.node(n).inputs[1 - i], "Sigmoid");
        if (!sigmoid || sigmoid->inputs[0] != x) continue;
        Node* const conv = PlainConv(r, x, 2);
        if (!conv) continue;
        explain(r.node(n).Label() + " is a SiLU that " + conv->Label() + " does");
        MakeFused(*conv);
        conv->attributes.emplace_back("activation", std::string("silu"));
        r.Remove(*sigmoid);
        TakeOver(r, *conv, r.node(n));
        ++changes;
        break;
      }
    } else if (r.node(n).op == "Add") {
      for (const size_t i : {size_t{0}, size_t{1}}) {
        const ValueId x = r.node(n).inputs[i], other = r.node(n).inputs[1 - i];
        Node* const conv = PlainConv(r, x, 1);
        if (!conv || conv->inputs.size() > 3 || other == x || !SameShape(r, x, other)) continue;
        explain(r.node(n).Label() + " is added by " + conv->Label());
        MakeFused(*conv);
        conv->inputs.resize(4, kNoValue);
        conv->inputs[3] = other;
        TakeOver(r, *conv, r.node(n));
        ++changes;
        break;
      }
    }
  }
  return changes;
}

}  // namespace celer::graph
