// Activations and plain functions of one tensor.
#include <algorithm>

#include "graph/load/pnnx/modules.h"

namespace celer::graph {
namespace {

using L = Lowering;

template <const char* kNode>
void Same(L& l) {
  l.Output(0, l.Node(kNode, {FirstInput(l)}));
}
constexpr char kRelu[] = "Relu", kSigmoid[] = "Sigmoid", kTanh[] = "Tanh", kHardSwish[] = "HardSwish",
               kMish[] = "Mish", kSoftplus[] = "Softplus", kSoftsign[] = "Softsign", kAbs[] = "Abs",
               kExp[] = "Exp", kLog[] = "Log", kSqrt[] = "Sqrt", kNeg[] = "Neg", kSin[] = "Sin",
               kCos[] = "Cos", kErf[] = "Erf", kFloor[] = "Floor", kCeil[] = "Ceil", kRound[] = "Round",
               kSelu[] = "Selu", kReciprocal[] = "Reciprocal", kSign[] = "Sign";

void Identity(L& l) {
  l.Output(0, FirstInput(l));
}
void Silu(L& l) {
  const ValueId x = FirstInput(l);
  l.Output(0, l.Node("Mul", {x, l.Node("Sigmoid", {x})}));
}
void Gelu(L& l) {
  l.Output(0, l.Node("Gelu", {FirstInput(l)}, {{"approximate", l.Text("approximate", "none")}}, {}, 20));
}
void HardSigmoid(L& l) {
  l.Output(0, l.Node("HardSigmoid", {FirstInput(l)}, {{"alpha", 1.0f / 6}, {"beta", 0.5f}}));
}
void ClipTo(L& l, double low, double high) {
  const ValueId x = FirstInput(l);
  const DType type = l.TypeOf(x);
  l.Output(0, l.Node("Clip", {x, l.ConstantFloat(low, type), l.ConstantFloat(high, type)}));
}
void Relu6(L& l) {
  ClipTo(l, 0, 6);
}
void Hardtanh(L& l) {
  ClipTo(l, l.Float("min_val", -1), l.Float("max_val", 1));
}
void Clamp(L& l) {
  const ValueId x = FirstInput(l);
  const DType type = l.TypeOf(x);
  const auto bound = [&](const char* key) {
    if (l.HasArgument(key)) return l.Argument(key, 0);
    return l.Has(key) ? l.Cast(l.ConstantFloat(l.Float(key, 0)), type) : kNoValue;
  };
  const ValueId low = bound("min"), high = bound("max");
  l.Output(0, l.Node("Clip", std::vector<ValueId>{x, low, high}));
}
void LeakyRelu(L& l) {
  l.Output(0, l.Node("LeakyRelu", {FirstInput(l)},
                     {{"alpha", static_cast<float>(l.Float("negative_slope", 0.01))}}));
}
void Elu(L& l) {
  l.Output(0, l.Node("Elu", {FirstInput(l)}, {{"alpha", static_cast<float>(l.Float("alpha", 1))}}));
}
void Celu(L& l) {
  l.Output(0, l.Node("Celu", {FirstInput(l)}, {{"alpha", static_cast<float>(l.Float("alpha", 1))}}));
}
void LogSigmoid(L& l) {
  l.Output(0, l.Node("Log", {l.Node("Sigmoid", {FirstInput(l)})}));
}
void PRelu(L& l) {
  const ValueId x = FirstInput(l);
  ValueId slope = l.Weight("weight");
  if (slope == kNoValue) slope = l.Argument("weight", 1);
  // One for each channel, which stands second.
  std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(l.Rank(x).value_or(4) - 1, 1)), 1);
  shape[0] = -1;
  l.Output(0, l.Node("PRelu", {x, l.Node("Reshape", {slope, l.Constants(shape)})}));
}
void Softmax(L& l) {
  l.Output(0, l.Node("Softmax", {FirstInput(l)}, {{"axis", l.Int("dim", -1)}}));
}
void LogSoftmax(L& l) {
  l.Output(0, l.Node("LogSoftmax", {FirstInput(l)}, {{"axis", l.Int("dim", -1)}}));
}

constexpr PnnxRow kRows[] = {
    {"nn.ReLU", Same<kRelu>},
    {"F.relu", Same<kRelu>},
    {"torch.relu", Same<kRelu>},
    {"nn.Sigmoid", Same<kSigmoid>},
    {"F.sigmoid", Same<kSigmoid>},
    {"torch.sigmoid", Same<kSigmoid>},
    {"nn.Tanh", Same<kTanh>},
    {"F.tanh", Same<kTanh>},
    {"torch.tanh", Same<kTanh>},
    {"nn.Hardswish", Same<kHardSwish>},
    {"F.hardswish", Same<kHardSwish>},
    {"nn.Mish", Same<kMish>},
    {"F.mish", Same<kMish>},
    {"nn.Softplus", Same<kSoftplus>},
    {"F.softplus", Same<kSoftplus>},
    {"nn.Softsign", Same<kSoftsign>},
    {"F.softsign", Same<kSoftsign>},
    {"nn.SELU", Same<kSelu>},
    {"F.selu", Same<kSelu>},
    {"torch.abs", Same<kAbs>},
    {"torch.exp", Same<kExp>},
    {"torch.log", Same<kLog>},
    {"torch.sqrt", Same<kSqrt>},
    {"torch.neg", Same<kNeg>},
    {"torch.sin", Same<kSin>},
    {"torch.cos", Same<kCos>},
    {"torch.erf", Same<kErf>},
    {"torch.floor", Same<kFloor>},
    {"torch.ceil", Same<kCeil>},
    {"torch.round", Same<kRound>},
    {"torch.reciprocal", Same<kReciprocal>},
    {"torch.sign", Same<kSign>},
    {"nn.SiLU", Silu},
    {"F.silu", Silu},
    {"nn.GELU", Gelu},
    {"F.gelu", Gelu},
    {"nn.Hardsigmoid", HardSigmoid},
    {"F.hardsigmoid", HardSigmoid},
    {"nn.ReLU6", Relu6},
    {"F.relu6", Relu6},
    {"nn.Hardtanh", Hardtanh},
    {"F.hardtanh", Hardtanh},
    {"torch.clamp", Clamp},
    {"torch.clip", Clamp},
    {"nn.LeakyReLU", LeakyRelu},
    {"F.leaky_relu", LeakyRelu},
    {"nn.ELU", Elu},
    {"F.elu", Elu},
    {"nn.CELU", Celu},
    {"F.celu", Celu},
    {"nn.LogSigmoid", LogSigmoid},
    {"F.logsigmoid", LogSigmoid},
    {"nn.PReLU", PRelu},
    {"F.prelu", PRelu},
    {"nn.Softmax", Softmax},
    {"F.softmax", Softmax},
    {"torch.softmax", Softmax},
    {"nn.LogSoftmax", LogSoftmax},
    {"F.log_softmax", LogSoftmax},
    {"nn.Dropout", Identity},
    {"F.dropout", Identity},
    {"nn.Dropout2d", Identity},
    {"nn.Identity", Identity},
    {"Tensor.contiguous", Identity},
    {"torch.clone", Identity},
    {"Tensor.clone", Identity},
    {"Tensor.detach", Identity},
};

}  // namespace

std::span<const PnnxRow> PnnxActivations() {
  return kRows;
}

}  // namespace celer::graph
