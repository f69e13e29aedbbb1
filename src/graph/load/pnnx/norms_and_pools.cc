// Normalizations and pools.
#include <algorithm>

#include "graph/load/pnnx/modules.h"

namespace celer::graph {
namespace {

using L = Lowering;

// A weight, or as many equal numbers.
ValueId WeightOr(L& l, const std::string& key, int64_t count, float otherwise) {
  if (const ValueId weight = l.Weight(key); weight != kNoValue) return weight;
  if (l.HasArgument(key)) return l.Argument(key, 0);
  return l.Node("Expand", {l.ConstantFloat(double{otherwise}), l.Constants({count})});
}
void BatchNorm(L& l) {
  const int64_t channels = l.Int("num_features", 0);
  l.Output(0, l.Node("BatchNormalization",
                     {FirstInput(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0),
                      WeightOr(l, "running_mean", channels, 0), WeightOr(l, "running_var", channels, 1)},
                     {{"epsilon", static_cast<float>(l.Float("eps", 1e-5))}}));
}
void LayerNorm(L& l) {
  const std::vector<int64_t> shape = l.Ints("normalized_shape");
  if (shape.empty()) {
    l.Fail("it has no normalized_shape");
    return;
  }
  ValueId scale = l.Weight("weight"), bias = l.Weight("bias");
  if (scale == kNoValue && l.HasArgument("weight")) scale = l.Argument("weight", 1);
  if (bias == kNoValue && l.HasArgument("bias")) bias = l.Argument("bias", 2);
  if (scale == kNoValue) scale = l.Node("Expand", {l.ConstantFloat(1), l.Constants(shape)});
  l.Output(0, l.Node("LayerNormalization", std::vector<ValueId>{FirstInput(l), scale, bias},
                     {{"axis", -static_cast<int64_t>(shape.size())},
                      {"epsilon", static_cast<float>(l.Float("eps", 1e-5))}}));
}
void GroupNorm(L& l) {
  const int64_t channels = l.Int("num_channels", 0);
  l.Output(0, l.Node("GroupNormalization",
                     {FirstInput(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0)},
                     {{"num_groups", l.Int("num_groups", 1)},
                      {"epsilon", static_cast<float>(l.Float("eps", 1e-5))}},
                     {}, 21));
}
void InstanceNorm(L& l) {
  const int64_t channels = l.Int("num_features", 0);
  l.Output(0, l.Node("InstanceNormalization",
                     {FirstInput(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0)},
                     {{"epsilon", static_cast<float>(l.Float("eps", 1e-5))}}));
}
void Normalize(L& l) {
  const ValueId x = FirstInput(l);
  const double p = l.Float("p", 2);
  if (p != 1 && p != 2) {
    l.Fail("the norm of order ", p, " is not known");
    return;
  }
  const ValueId norm = l.Node(p == 2 ? "ReduceL2" : "ReduceL1", {x, l.Constants({l.Int("dim", 1)})});
  l.Output(0, l.Node("Div", {x, l.Node("Max", {norm, l.ConstantFloat(l.Float("eps", 1e-12), l.TypeOf(x))})}));
}

// --- pools ---

template <size_t kDims>
L::Attributes PoolAttributes(L& l) {
  std::vector<int64_t> kernel = l.Ints("kernel_size", kDims, 1), pads = l.Ints("padding", kDims, 0);
  std::vector<int64_t> strides = l.Has("stride") ? l.Ints("stride", kDims, 1) : kernel;
  pads.insert(pads.end(), pads.begin(), pads.end());
  return {{"kernel_shape", kernel},
          {"strides", strides},
          {"pads", pads},
          {"ceil_mode", l.Bool("ceil_mode", false) ? int64_t{1} : 0}};
}
template <size_t kDims>
void MaxPool(L& l) {
  if (l.Bool("return_indices", false)) l.Fail("return_indices is not known");
  L::Attributes attributes = PoolAttributes<kDims>(l);
  attributes.emplace_back("dilations", l.Ints("dilation", kDims, 1));
  l.Output(0, l.Node("MaxPool", {FirstInput(l)}, std::move(attributes)));
}
template <size_t kDims>
void AvgPool(L& l) {
  if (l.Has("divisor_override")) l.Fail("divisor_override is not known");
  L::Attributes attributes = PoolAttributes<kDims>(l);
  attributes.emplace_back("count_include_pad", l.Bool("count_include_pad", true) ? int64_t{1} : 0);
  l.Output(0, l.Node("AveragePool", {FirstInput(l)}, std::move(attributes)));
}
template <size_t kDims, bool kMax>
void AdaptivePool(L& l) {
  const ValueId x = FirstInput(l);
  const std::vector<int64_t> wanted = l.Ints("output_size", kDims, 1);
  if (std::all_of(wanted.begin(), wanted.end(), [](int64_t n) { return n == 1; })) {
    l.Output(0, l.Node(kMax ? "GlobalMaxPool" : "GlobalAveragePool", {x}));
    return;
  }
  const auto rank = l.Rank(x);
  std::vector<int64_t> kernel;
  for (size_t i = 0; i < kDims && rank && *rank >= static_cast<int64_t>(kDims); ++i) {
    const Dim& dim = (*l.graph().value(x).type.shape)[static_cast<size_t>(*rank) - kDims + i];
    if (!dim.fixed() || wanted[i] < 1 || dim.size % wanted[i] != 0) break;
    kernel.push_back(dim.size / wanted[i]);
  }
  if (kernel.size() != kDims) {
    l.Fail("an output_size that does not divide the input's size, or an input whose size is not known");
    return;
  }
  l.Output(0, l.Node(kMax ? "MaxPool" : "AveragePool", {x}, {{"kernel_shape", kernel}, {"strides", kernel}}));
}

constexpr PnnxRow kRows[] = {
    {"nn.BatchNorm1d", BatchNorm},
    {"nn.BatchNorm2d", BatchNorm},
    {"nn.BatchNorm3d", BatchNorm},
    {"F.batch_norm", BatchNorm},
    {"nn.LayerNorm", LayerNorm},
    {"F.layer_norm", LayerNorm},
    {"nn.GroupNorm", GroupNorm},
    {"nn.InstanceNorm1d", InstanceNorm},
    {"nn.InstanceNorm2d", InstanceNorm},
    {"nn.InstanceNorm3d", InstanceNorm},
    {"F.normalize", Normalize},
    {"nn.MaxPool1d", MaxPool<1>},
    {"nn.MaxPool2d", MaxPool<2>},
    {"nn.MaxPool3d", MaxPool<3>},
    {"F.max_pool1d", MaxPool<1>},
    {"F.max_pool2d", MaxPool<2>},
    {"F.max_pool3d", MaxPool<3>},
    {"nn.AvgPool1d", AvgPool<1>},
    {"nn.AvgPool2d", AvgPool<2>},
    {"nn.AvgPool3d", AvgPool<3>},
    {"F.avg_pool1d", AvgPool<1>},
    {"F.avg_pool2d", AvgPool<2>},
    {"F.avg_pool3d", AvgPool<3>},
    {"nn.AdaptiveAvgPool1d", AdaptivePool<1, false>},
    {"nn.AdaptiveAvgPool2d", AdaptivePool<2, false>},
    {"F.adaptive_avg_pool1d", AdaptivePool<1, false>},
    {"F.adaptive_avg_pool2d", AdaptivePool<2, false>},
    {"nn.AdaptiveMaxPool2d", AdaptivePool<2, true>},
    {"F.adaptive_max_pool2d", AdaptivePool<2, true>},
};

}  // namespace

std::span<const PnnxRow> PnnxNormsAndPools() {
  return kRows;
}

}  // namespace celer::graph
