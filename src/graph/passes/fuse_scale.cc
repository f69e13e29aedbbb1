// Folds constants that multiply a convolution's output or its input, or are added to them, into its weights
// and bias.
#include <cmath>

#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

// One number for all channels, or one for each: [channels, 1, ...] in front of the spatial dimensions.
std::optional<std::vector<float>> PerChannel(Rewriter& r, ValueId value, int64_t channels, int spatial) {
  const Constant* const constant = r.ConstantOf(value);
  if (!constant || constant->dtype != DType::kF32) return std::nullopt;
  const std::vector<float> numbers = FloatsOf(*constant);
  const Shape& shape = constant->shape;
  if (shape.rank() > spatial + 2) return std::nullopt;  // it would add a dimension
  if (numbers.size() == 1) return std::vector<float>(static_cast<size_t>(channels), numbers[0]);
  if (static_cast<int64_t>(numbers.size()) != channels || shape.rank() < spatial + 1 ||
      shape[shape.rank() - spatial - 1] != channels)
    return std::nullopt;
  return numbers;
}

// Multiplied or added behind the convolution.
bool FuseBehind(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    Node* const conv = SingleUseConv(r, r.node(n).inputs[i]);
    if (!conv) continue;
    const int64_t channels = OutputChannels(r, *conv);
    const auto numbers =
        PerChannel(r, r.node(n).inputs[1 - i], channels, r.ConstantOf(conv->inputs[1])->shape.rank() - 2);
    if (!numbers) continue;
    const bool mul = r.node(n).op == "Mul";
    ChannelScale by{std::vector<float>(static_cast<size_t>(channels), 1.0f),
                    std::vector<float>(static_cast<size_t>(channels), 0.0f)};
    (mul ? by.factor : by.shift) = *numbers;
    const std::string note = r.node(n).Label() + " is in the weights of " + conv->Label();
    if (!ScaleOutputs(r, *conv, by)) continue;
    explain(note);
    TakeOver(r, *conv, r.node(n));
    return true;
  }
  return false;
}

// What a node reads besides one number; nothing if it has none.
struct WithNumber {
  ValueId other;
  float number;
};
std::optional<WithNumber> SplitNumber(Rewriter& r, const Node& node) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const Constant* const constant = r.ConstantOf(node.inputs[i]);
    if (!constant || constant->dtype != DType::kF32 || constant->shape.rank() > 1) continue;
    if (const auto number = r.Scalar(node.inputs[i]); number && std::isfinite(*number))
      return WithNumber{node.inputs[1 - i], static_cast<float>(*number)};
  }
  return std::nullopt;
}

bool IsPadded(const Node& conv) {
  if (conv.Text("auto_pad", "NOTSET") != "NOTSET" && conv.Text("auto_pad", "NOTSET") != "VALID") return true;
  for (const int64_t pad : conv.Ints("pads"))
    if (pad != 0) return true;
  return false;
}

// The convolution of factor * x: the factor goes into all weights, but not into the bias.
void ScaleInput(Rewriter& r, Node& conv, float factor) {
  const Constant& weight = *r.ConstantOf(conv.inputs[1]);
  std::vector<float> weights = FloatsOf(weight);
  for (float& w : weights) w *= factor;
  const std::vector<int64_t> dims(weight.shape.dims().begin(), weight.shape.dims().end());
  conv.inputs[1] = r.AddFloats(conv.name + ".weight", dims, weights);
}

// The convolution of x + shift, where there is no padding.
bool ShiftInput(Rewriter& r, Node& conv, float shift) {
  const Constant& weight = *r.ConstantOf(conv.inputs[1]);
  const std::vector<float> weights = FloatsOf(weight);
  const auto channels = static_cast<size_t>(weight.shape[0]), taps = weights.size() / channels;
  ChannelScale by{std::vector<float>(channels, 1.0f), {}};
  for (size_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (size_t k = 0; k < taps; ++k) sum += weights[c * taps + k];
    by.shift.push_back(static_cast<float>(sum * shift));
  }
  return ScaleOutputs(r, conv, by);
}

// Multiplied or added in front of it.
bool FuseInFront(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  if (!HasConstantWeights(r, r.node(n)) || *r.ConstantOf(r.node(n).inputs[1])->shape.elements() == 0)
    return false;
  const ValueId x = r.node(n).inputs[0];
  const auto note = [&](const Node& node) {
    return node.Label() + " is in the weights of " + r.node(n).Label();
  };
  if (Node* const mul = r.SingleUseProducer(x, "Mul")) {
    const auto parts = SplitNumber(r, *mul);
    if (!parts) return false;
    explain(note(*mul));
    ScaleInput(r, r.node(n), parts->number);
    r.node(n).inputs[0] = parts->other;
    r.Recount();
    return true;
  }
  Node* const add = r.SingleUseProducer(x, "Add");
  const auto parts = add ? SplitNumber(r, *add) : std::nullopt;
  if (!parts) return false;
  if (!IsPadded(r.node(n))) {
    const std::string text = note(*add);
    if (!ShiftInput(r, r.node(n), parts->number)) return false;
    explain(text);
    r.node(n).inputs[0] = parts->other;
    r.Recount();
    return true;
  }
  // Padding stays 0: what is added stays, and only the factor before it moves.
  Node* const mul = r.SingleUseProducer(parts->other, "Mul");
  const auto inner = mul ? SplitNumber(r, *mul) : std::nullopt;
  if (!inner || std::abs(inner->number) < 1e-6f) return false;
  explain(note(*mul));
  const float shift = parts->number / inner->number;
  add->inputs = {inner->other, r.AddFloats(add->name + ".shift", {1}, {shift})};
  ScaleInput(r, r.node(n), inner->number);
  r.Recount();
  return true;
}

}  // namespace

Result<int> FuseScale(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || !r.node(n).domain.empty()) continue;
    const std::string& op = r.node(n).op;
    if ((op == "Mul" || op == "Add") && r.node(n).inputs.size() == 2)
      changes += FuseBehind(r, n, explain) ? 1 : 0;
    else if (op == "Conv")
      while (FuseInFront(r, n, explain)) ++changes;
  }
  return changes;
}

}  // namespace celer::graph
