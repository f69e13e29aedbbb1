// The operators of PNNX, which are PyTorch's modules and functions, as nodes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/pnnx/lowering.h"

namespace celer::graph {
namespace {

using L = Lowering;
constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();
constexpr int64_t kNotSelected = std::numeric_limits<int32_t>::max();

// "F.relu" and "nn.ReLU" take their input in the same place.
ValueId X(L& l) {
  return l.Argument("input", 0);
}

template <const char* kNode>
void Same(L& l) {
  l.Output(0, l.Node(kNode, {X(l)}));
}
constexpr char kRelu[] = "Relu", kSigmoid[] = "Sigmoid", kTanh[] = "Tanh", kHardSwish[] = "HardSwish",
               kMish[] = "Mish", kSoftplus[] = "Softplus", kSoftsign[] = "Softsign", kAbs[] = "Abs",
               kExp[] = "Exp", kLog[] = "Log", kSqrt[] = "Sqrt", kNeg[] = "Neg", kSin[] = "Sin",
               kCos[] = "Cos", kErf[] = "Erf", kFloor[] = "Floor", kCeil[] = "Ceil", kRound[] = "Round",
               kSelu[] = "Selu", kReciprocal[] = "Reciprocal", kSign[] = "Sign";

void Identity(L& l) {
  l.Output(0, X(l));
}
void Silu(L& l) {
  const ValueId x = X(l);
  l.Output(0, l.Node("Mul", {x, l.Node("Sigmoid", {x})}));
}
void Gelu(L& l) {
  l.Output(0, l.Node("Gelu", {X(l)}, {{"approximate", l.Text("approximate", "none")}}, {}, 20));
}
void HardSigmoid(L& l) {
  l.Output(0, l.Node("HardSigmoid", {X(l)}, {{"alpha", 1.0f / 6}, {"beta", 0.5f}}));
}
void ClipTo(L& l, double low, double high) {
  const ValueId x = X(l);
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
  const ValueId x = X(l);
  const DType type = l.TypeOf(x);
  const auto bound = [&](const char* key) {
    if (l.HasArgument(key)) return l.Argument(key, 0);
    return l.Has(key) ? l.Cast(l.ConstantFloat(l.Float(key, 0)), type) : kNoValue;
  };
  const ValueId low = bound("min"), high = bound("max");
  l.Output(0, l.Node("Clip", std::vector<ValueId>{x, low, high}));
}
void LeakyRelu(L& l) {
  l.Output(0, l.Node("LeakyRelu", {X(l)}, {{"alpha", static_cast<float>(l.Float("negative_slope", 0.01))}}));
}
void Elu(L& l) {
  l.Output(0, l.Node("Elu", {X(l)}, {{"alpha", static_cast<float>(l.Float("alpha", 1))}}));
}
void Celu(L& l) {
  l.Output(0, l.Node("Celu", {X(l)}, {{"alpha", static_cast<float>(l.Float("alpha", 1))}}));
}
void LogSigmoid(L& l) {
  l.Output(0, l.Node("Log", {l.Node("Sigmoid", {X(l)})}));
}
void PRelu(L& l) {
  const ValueId x = X(l);
  ValueId slope = l.Weight("weight");
  if (slope == kNoValue) slope = l.Argument("weight", 1);
  // One for each channel, which stands second.
  std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(l.Rank(x).value_or(4) - 1, 1)), 1);
  shape[0] = -1;
  l.Output(0, l.Node("PRelu", {x, l.Node("Reshape", {slope, l.Constants(shape)})}));
}
void Softmax(L& l) {
  l.Output(0, l.Node("Softmax", {X(l)}, {{"axis", l.Int("dim", -1)}}));
}
void LogSoftmax(L& l) {
  l.Output(0, l.Node("LogSoftmax", {X(l)}, {{"axis", l.Int("dim", -1)}}));
}

// --- products ---

ValueId Padded(L& l, ValueId x, const std::vector<int64_t>& pads, const std::string& mode) {
  std::vector<int64_t> axes, both = pads;
  for (size_t i = 0; i < pads.size(); ++i) axes.push_back(static_cast<int64_t>(i) + 2);
  both.insert(both.end(), pads.begin(), pads.end());
  const std::string onnx = mode == "replicate" ? "edge" : mode == "circular" ? "wrap" : mode;
  return l.Node("Pad", std::vector<ValueId>{x, l.Constants(both), kNoValue, l.Constants(axes)},
                {{"mode", onnx}}, {}, 19);
}

template <size_t kDims>
void Conv(L& l) {
  ValueId x = X(l), weight = l.Weight("weight"), bias = l.Weight("bias");
  if (weight == kNoValue) weight = l.Argument("weight", 1);
  if (bias == kNoValue && l.HasArgument("bias")) bias = l.Argument("bias", 2);
  L::Attributes attributes = {{"strides", l.Ints("stride", kDims, 1)},
                              {"dilations", l.Ints("dilation", kDims, 1)},
                              {"group", l.Int("groups", 1)}};
  const auto* word = l.Has("padding") ? std::get_if<std::string>(&l.op().parameters.at("padding")) : nullptr;
  if (word && *word == "same") {
    attributes.emplace_back("auto_pad", std::string("SAME_UPPER"));
  } else if (!word) {
    std::vector<int64_t> pads = l.Ints("padding", kDims, 0);
    const std::string mode = l.Text("padding_mode", "zeros");
    if (mode != "zeros") {
      x = Padded(l, x, pads, mode);
    } else {
      pads.insert(pads.end(), pads.begin(), pads.end());
      attributes.emplace_back("pads", pads);
    }
  }
  l.Output(0, l.Node("Conv", std::vector<ValueId>{x, weight, bias}, std::move(attributes)));
}

template <size_t kDims>
void ConvTranspose(L& l) {
  ValueId weight = l.Weight("weight"), bias = l.Weight("bias");
  if (weight == kNoValue) weight = l.Argument("weight", 1);
  if (bias == kNoValue && l.HasArgument("bias")) bias = l.Argument("bias", 2);
  std::vector<int64_t> pads = l.Ints("padding", kDims, 0);
  pads.insert(pads.end(), pads.begin(), pads.end());
  l.Output(0, l.Node("ConvTranspose", std::vector<ValueId>{X(l), weight, bias},
                     {{"strides", l.Ints("stride", kDims, 1)},
                      {"dilations", l.Ints("dilation", kDims, 1)},
                      {"group", l.Int("groups", 1)},
                      {"output_padding", l.Ints("output_padding", kDims, 0)},
                      {"pads", pads}}));
}

void Linear(L& l) {
  const ValueId bias = l.Weight("bias");
  const ValueId product = l.Node("MatMul", {X(l), l.Transposed("weight")});
  l.Output(0, bias == kNoValue ? product : l.Node("Add", {product, bias}));
}
ValueId SwapLast(L& l, ValueId x) {
  const auto rank = l.Rank(x);
  if (!rank || *rank < 2) return l.Fail("its shape is not known, so its last dimensions cannot be swapped");
  std::vector<int64_t> order;
  for (int64_t i = 0; i < *rank; ++i) order.push_back(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return l.Node("Transpose", {x}, {{"perm", order}});
}
void FLinear(L& l) {
  const ValueId product = l.Node("MatMul", {X(l), SwapLast(l, l.Argument("weight", 1))});
  l.Output(0, l.HasArgument("bias") ? l.Node("Add", {product, l.Argument("bias", 2)}) : product);
}
void MatMul(L& l) {
  l.Output(0, l.Node("MatMul", {l.Input(0), l.Input(1)}));
}
void AddMatMul(L& l) {
  ValueId product = l.Node("MatMul", {l.Input(1), l.Input(2)}), sum = l.Input(0);
  if (l.Float("alpha", 1) != 1)
    product = l.Node("Mul", {product, l.ConstantFloat(l.Float("alpha", 1), l.TypeOf(product))});
  if (l.Float("beta", 1) != 1) sum = l.Node("Mul", {sum, l.ConstantFloat(l.Float("beta", 1), l.TypeOf(sum))});
  l.Output(0, l.Node("Add", {sum, product}));
}
void Embedding(L& l) {
  ValueId table = l.Weight("weight");
  if (table == kNoValue) table = l.Argument("weight", 1);
  const ValueId out = l.Node("Gather", {table, X(l)}, {{"axis", int64_t{0}}});
  l.Output(0, out);
}
void Einsum(L& l) {
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < l.inputs(); ++i) inputs.push_back(l.Input(i));
  l.Output(0, l.Node("Einsum", inputs, {{"equation", l.Text("equation", "")}}));
}

// softmax(q k^T scale + mask) v
ValueId Attend(L& l, ValueId q, ValueId k, ValueId v, ValueId mask, bool causal, double scale) {
  const DType type = l.TypeOf(q);
  ValueId scores = l.Node("MatMul", {l.Node("Mul", {q, l.ConstantFloat(scale, type)}), SwapLast(l, k)});
  if (causal) {
    const ValueId lengths = l.Node("Concat",
                                   {l.Node("Reshape", {l.SizeOf(q, -2), l.Constants({1})}),
                                    l.Node("Reshape", {l.SizeOf(k, -2), l.Constants({1})})},
                                   {{"axis", int64_t{0}}}, DType::kI64);
    const ValueId seen =
        l.Node("Trilu", {l.Node("Expand", {l.ConstantFloat(1, type), lengths})}, {{"upper", int64_t{0}}});
    const ValueId hidden = l.Node("Equal", {seen, l.ConstantFloat(0, type)}, {}, DType::kBool);
    scores = l.Node("Where", {hidden, l.ConstantFloat(-1e9, type), scores}, {}, type);
  }
  if (mask != kNoValue) {
    if (l.TypeOf(mask) == DType::kBool)
      scores = l.Node("Where", {mask, scores, l.ConstantFloat(-1e9, type)}, {}, type);
    else
      scores = l.Node("Add", {scores, mask});
  }
  return l.Node("MatMul", {l.Node("Softmax", {scores}, {{"axis", int64_t{-1}}}), v});
}
void Attention(L& l) {
  const ValueId q = l.Argument("query", 0), k = l.Argument("key", 1), v = l.Argument("value", 2);
  const ValueId mask = l.HasArgument("attn_mask") ? l.Argument("attn_mask", 3) : kNoValue;
  if (l.Bool("enable_gqa", false)) l.Fail("grouped queries (enable_gqa) are not known");
  double scale = l.Float("scale", 0);
  if (scale == 0) {
    const auto rank = l.Rank(q);
    const Dim width = rank && *rank > 0 ? l.graph().value(q).type.shape->back() : Dim();
    if (!width.fixed() || width.size == 0) {
      l.Fail("neither its scale nor the width of its heads is known");
      return;
    }
    scale = 1 / std::sqrt(static_cast<double>(width.size));
  }
  l.Output(0, Attend(l, q, k, v, mask, l.Bool("is_causal", false), scale));
}
void MultiheadAttention(L& l) {
  const int64_t heads = l.Int("num_heads", 1), width = l.Int("embed_dim", 0);
  if (heads < 1 || width < 1 || width % heads != 0) {
    l.Fail("embed_dim ", width, " is not divided by num_heads ", heads);
    return;
  }
  const bool batch_first = l.Bool("batch_first", false);
  const ValueId in_weight = l.Weight("in_proj_weight"), in_bias = l.Weight("in_proj_bias");
  if (in_weight == kNoValue || l.Bool("add_zero_attn", false) || l.Bool("add_bias_kv", false)) {
    l.Fail("only one matrix for queries, keys and values, without added rows, is known");
    return;
  }
  std::vector<ValueId> in;
  const size_t given = l.inputs() >= 3 ? 3 : l.inputs();
  for (size_t i = 0; i < 3; ++i) {
    ValueId x = l.Input(given == 3 ? i : given == 2 ? std::min<size_t>(i, 1) : 0);
    if (!batch_first) x = l.Node("Transpose", {x}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
    const auto slice = [&](ValueId from) {
      const auto at = static_cast<int64_t>(i) * width;
      return l.Node("Slice", {from, l.Constants({at}), l.Constants({at + width}), l.Constants({0})});
    };
    const ValueId matrix = l.Node("Transpose", {slice(in_weight)}, {{"perm", std::vector<int64_t>{1, 0}}});
    x = l.Node("MatMul", {x, matrix});
    if (in_bias != kNoValue) x = l.Node("Add", {x, slice(in_bias)});
    x = l.Node("Reshape", {x, l.Constants({0, 0, heads, width / heads})});
    x = l.Node("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    l.graph().value(x).type.shape = std::vector<Dim>(4);
    in.push_back(x);
  }
  const ValueId mask = l.HasArgument("attn_mask") ? l.Argument("attn_mask", 3) : kNoValue;
  ValueId y = Attend(l, in[0], in[1], in[2], mask, false, 1 / std::sqrt(static_cast<double>(width / heads)));
  y = l.Node("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  y = l.Node("Reshape", {y, l.Constants({0, 0, width})});
  y = l.Node("MatMul", {y, l.Transposed("out_proj.weight")});
  if (const ValueId bias = l.Weight("out_proj.bias"); bias != kNoValue) y = l.Node("Add", {y, bias});
  if (!batch_first) y = l.Node("Transpose", {y}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
  l.Output(0, y);
}

// --- norms ---

// A weight, or as many equal numbers.
ValueId WeightOr(L& l, const std::string& key, int64_t count, float otherwise) {
  if (const ValueId weight = l.Weight(key); weight != kNoValue) return weight;
  if (l.HasArgument(key)) return l.Argument(key, 0);
  return l.Node("Expand", {l.ConstantFloat(double{otherwise}), l.Constants({count})});
}
void BatchNorm(L& l) {
  const int64_t channels = l.Int("num_features", 0);
  l.Output(0, l.Node("BatchNormalization",
                     {X(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0),
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
  l.Output(0, l.Node("LayerNormalization", std::vector<ValueId>{X(l), scale, bias},
                     {{"axis", -static_cast<int64_t>(shape.size())},
                      {"epsilon", static_cast<float>(l.Float("eps", 1e-5))}}));
}
void GroupNorm(L& l) {
  const int64_t channels = l.Int("num_channels", 0);
  l.Output(0, l.Node("GroupNormalization",
                     {X(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0)},
                     {{"num_groups", l.Int("num_groups", 1)},
                      {"epsilon", static_cast<float>(l.Float("eps", 1e-5))}},
                     {}, 21));
}
void InstanceNorm(L& l) {
  const int64_t channels = l.Int("num_features", 0);
  l.Output(0, l.Node("InstanceNormalization",
                     {X(l), WeightOr(l, "weight", channels, 1), WeightOr(l, "bias", channels, 0)},
                     {{"epsilon", static_cast<float>(l.Float("eps", 1e-5))}}));
}
void Normalize(L& l) {
  const ValueId x = X(l);
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
  l.Output(0, l.Node("MaxPool", {X(l)}, std::move(attributes)));
}
template <size_t kDims>
void AvgPool(L& l) {
  if (l.Has("divisor_override")) l.Fail("divisor_override is not known");
  L::Attributes attributes = PoolAttributes<kDims>(l);
  attributes.emplace_back("count_include_pad", l.Bool("count_include_pad", true) ? int64_t{1} : 0);
  l.Output(0, l.Node("AveragePool", {X(l)}, std::move(attributes)));
}
template <size_t kDims, bool kMax>
void AdaptivePool(L& l) {
  const ValueId x = X(l);
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

// --- shapes ---

void Reshape(L& l) {
  const ValueId x = X(l);
  const char* const key = l.Has("shape") || l.HasArgument("shape") ? "shape" : "size";
  l.Output(0, l.Node("Reshape", {x, l.IntsOrOperand(key)}, {{"allowzero", int64_t{1}}}));
}
void Flatten(L& l) {
  const ValueId x = X(l);
  const auto rank = l.Rank(x);
  const int64_t start = l.Axis(l.Int("start_dim", l.op().type == "nn.Flatten" ? 1 : 0), x);
  int64_t end = l.Int("end_dim", -1);
  if (end != -1 && (!rank || end != *rank - 1)) {
    end = l.Axis(end, x);
    const ValueId shape = l.ShapeOf(x);
    const auto part = [&](int64_t from, int64_t to) {
      return l.Node("Slice", {shape, l.Constants({from}), l.Constants({to}), l.Constants({0})});
    };
    const ValueId whole = l.Node("Concat", {part(0, start), l.Constants({-1}), part(end + 1, kToTheEnd)},
                                 {{"axis", int64_t{0}}}, DType::kI64);
    l.Output(0, l.Node("Reshape", {x, whole}));
    return;
  }
  std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(start, 0)), 0);
  shape.push_back(-1);
  l.Output(0, l.Node("Reshape", {x, l.Constants(shape)}));
}
void Unflatten(L& l) {
  const ValueId x = X(l);
  const int64_t axis = l.Axis(l.Int("dim", 0), x);
  const ValueId shape = l.ShapeOf(x);
  const auto part = [&](int64_t from, int64_t to) {
    return l.Node("Slice", {shape, l.Constants({from}), l.Constants({to}), l.Constants({0})});
  };
  const char* const key = l.Has("sizes") ? "sizes" : "unflattened_size";
  l.Output(0,
           l.Node("Reshape",
                  {x, l.Node("Concat", {part(0, axis), l.Constants(l.Ints(key)), part(axis + 1, kToTheEnd)},
                             {{"axis", int64_t{0}}}, DType::kI64)}));
}
void Permute(L& l) {
  const ValueId x = X(l);
  std::vector<int64_t> order = l.Ints("dims");
  for (int64_t& axis : order) axis = axis < 0 ? axis + static_cast<int64_t>(order.size()) : axis;
  l.Output(0, l.Node("Transpose", {x}, {{"perm", order}}));
}
void Transpose(L& l) {
  const ValueId x = X(l);
  const auto rank = l.Rank(x);
  const int64_t a = l.Axis(l.Int("dim0", 0), x), b = l.Axis(l.Int("dim1", 1), x);
  if (!rank || a < 0 || b < 0 || a >= *rank || b >= *rank) {
    l.Fail("the shape of its input is not known, or has no such dimensions");
    return;
  }
  std::vector<int64_t> order;
  for (int64_t i = 0; i < *rank; ++i) order.push_back(i);
  std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  l.Output(0, l.Node("Transpose", {x}, {{"perm", order}}));
}
void Unsqueeze(L& l) {
  l.Output(0, l.Node("Unsqueeze", {X(l), l.Constants({l.Int("dim", 0)})}));
}
void Squeeze(L& l) {
  l.Output(0,
           l.Has("dim") ? l.Node("Squeeze", {X(l), l.Constants(l.Ints("dim"))}) : l.Node("Squeeze", {X(l)}));
}
void Expand(L& l) {
  const ValueId x = X(l);
  const char* const key = l.Has("sizes") || l.HasArgument("sizes")   ? "sizes"
                          : l.Has("shape") || l.HasArgument("shape") ? "shape"
                                                                     : "size";
  if (l.HasArgument(key)) {
    l.Output(0, l.Node("Expand", {x, l.Argument(key, 1)}));
    return;
  }
  std::vector<int64_t> sizes = l.Ints(key);
  for (int64_t& size : sizes) size = size == -1 ? 1 : size;  // as it is
  l.Output(0, l.Node("Expand", {x, l.Constants(sizes)}));
}
void ExpandAs(L& l) {
  l.Output(0, l.Node("Expand", {l.Input(0), l.ShapeOf(l.Input(1))}));
}
void Repeat(L& l) {
  ValueId x = X(l);
  const std::vector<int64_t> times = l.Ints(l.Has("sizes") ? "sizes" : "dims");
  const auto rank = l.Rank(x);
  if (!rank) {
    l.Fail("the shape of its input is not known");
    return;
  }
  std::vector<int64_t> front;
  for (int64_t i = 0; i < static_cast<int64_t>(times.size()) - *rank; ++i) front.push_back(i);
  if (!front.empty()) x = l.Node("Unsqueeze", {x, l.Constants(front)});
  l.Output(0, l.Node("Tile", {x, l.Constants(times)}));
}
void Cat(L& l) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < l.inputs(); ++i) parts.push_back(l.Input(i));
  l.Output(0, l.Node("Concat", parts, {{"axis", l.Int("dim", 0)}}));
}
void Stack(L& l) {
  std::vector<ValueId> parts;
  const int64_t axis = l.Int("dim", 0);
  for (size_t i = 0; i < l.inputs(); ++i)
    parts.push_back(l.Node("Unsqueeze", {l.Input(i), l.Constants({axis})}));
  l.Output(0, l.Node("Concat", parts, {{"axis", axis}}));
}
// Each piece [begin, end) of a dimension.
void Pieces(L& l, int64_t axis, const std::vector<int64_t>& ends) {
  const ValueId x = X(l);
  int64_t begin = 0;
  for (size_t i = 0; i < l.op().outputs.size(); ++i) {
    const int64_t end = i < ends.size() ? ends[i] : kToTheEnd;
    l.Output(i, l.Node("Slice", {x, l.Constants({begin}), l.Constants({end}), l.Constants({axis})}));
    begin = end;
  }
}
void Split(L& l) {
  const char* const key = l.Has("split_size_or_sections") ? "split_size_or_sections" : "split_size";
  std::vector<int64_t> sizes = l.Ints(key), ends;
  if (sizes.size() == 1) sizes.resize(l.op().outputs.size(), sizes[0]);
  int64_t end = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) ends.push_back(end += sizes[i]);
  Pieces(l, l.Int("dim", 0), ends);
}
void TensorSplit(L& l) {
  if (!l.Has("indices")) l.Fail("it has no indices");
  Pieces(l, l.Int("dim", 0), l.Ints("indices"));
}
void Chunk(L& l) {
  const ValueId x = X(l);
  const size_t outputs = l.op().outputs.size();
  const std::vector<ValueId> parts = l.NodeOf(
      "Split", {x}, outputs, {{"axis", l.Int("dim", 0)}, {"num_outputs", static_cast<int64_t>(outputs)}});
  for (size_t i = 0; i < outputs; ++i) {
    l.graph().value(parts[i]).type.dtype = l.TypeOf(x);
    l.Output(i, parts[i]);
  }
}
void Unbind(L& l) {
  const ValueId x = X(l);
  for (size_t i = 0; i < l.op().outputs.size(); ++i)
    l.Output(i, l.Node("Gather", {x, l.ConstantInt(static_cast<int64_t>(i))}, {{"axis", l.Int("dim", 0)}}));
}
void Select(L& l) {
  const ValueId index = l.HasArgument("index") ? l.Argument("index", 1) : l.ConstantInt(l.Int("index", 0));
  l.Output(0, l.Node("Gather", {X(l), index}, {{"axis", l.Int("dim", 0)}}));
}
void Slice(L& l) {
  ValueId x = X(l);
  const bool many = l.Has("dims");
  const std::vector<int64_t> axes = many ? l.Ints("dims") : std::vector<int64_t>{l.Int("dim", 0)};
  const auto list = [&](const char* plural, const char* single, int64_t otherwise) {
    const char* const key = many ? plural : single;
    return l.HasArgument(key) ? l.Node("Reshape", {l.Argument(key, 1), l.Constants({-1})})
                              : l.Constants(l.Ints(key, axes.size(), otherwise));
  };
  const std::vector<int64_t> selects =
      many && l.Has("selects") ? l.Ints("selects", axes.size(), kNotSelected) : std::vector<int64_t>();
  std::vector<int64_t> gone;  // dimensions of which one index is kept
  if (std::any_of(selects.begin(), selects.end(), [](int64_t s) { return s != kNotSelected; })) {
    std::vector<int64_t> starts = l.Ints("starts", axes.size(), 0),
                         ends = l.Ints("ends", axes.size(), kToTheEnd);
    const std::vector<int64_t> steps = l.Ints("steps", axes.size(), 1);
    for (size_t i = 0; i < axes.size(); ++i) {
      if (selects[i] == kNotSelected) continue;
      starts[i] = selects[i];
      ends[i] = selects[i] == -1 ? kToTheEnd : selects[i] + 1;
      gone.push_back(axes[i]);
    }
    x = l.Node("Slice", {x, l.Constants(starts), l.Constants(ends), l.Constants(axes), l.Constants(steps)});
    l.Output(0, l.Node("Squeeze", {x, l.Constants(gone)}));
    return;
  }
  const ValueId starts = list("starts", "start", 0), ends = list("ends", "end", kToTheEnd),
                steps = list("steps", "step", 1);
  l.Output(0, l.Node("Slice", {x, starts, ends, l.Constants(axes), steps}));
}
void IndexSelect(L& l) {
  l.Output(0, l.Node("Gather", {X(l), l.Argument("index", 1)}, {{"axis", l.Int("dim", 0)}}));
}
void Gather(L& l) {
  l.Output(0, l.Node("GatherElements", {X(l), l.Argument("index", 1)}, {{"axis", l.Int("dim", 0)}}));
}
void Size(L& l) {
  const ValueId x = X(l);
  l.Output(0, l.Has("dim") ? l.SizeOf(x, l.Int("dim", 0)) : l.ShapeOf(x));
}
void Pad(L& l) {
  const ValueId x = X(l);
  const std::string mode = l.Text("mode", "constant");
  const std::vector<int64_t> pads = l.Ints(l.Has("pad") ? "pad" : "padding");
  std::vector<int64_t> axes, begins, ends;  // PyTorch begins with the last dimension
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    axes.push_back(-1 - static_cast<int64_t>(i / 2));
    begins.push_back(pads[i]);
    ends.push_back(pads[i + 1]);
  }
  begins.insert(begins.end(), ends.begin(), ends.end());
  const std::string& type = l.op().type;
  const std::string onnx = type.starts_with("nn.Reflection") || mode == "reflect"      ? "reflect"
                           : type.starts_with("nn.Replication") || mode == "replicate" ? "edge"
                           : mode == "circular"                                        ? "wrap"
                                                                                       : "constant";
  const ValueId value = l.Cast(l.ConstantFloat(l.Float("value", 0)), l.TypeOf(x));
  l.Output(0, l.Node("Pad", {x, l.Constants(begins), value, l.Constants(axes)}, {{"mode", onnx}}, {}, 19));
}
void Resize(L& l) {
  const ValueId x = X(l);
  const std::string mode = l.op().type.ends_with("Nearest2d")    ? "nearest"
                           : l.op().type.ends_with("Bilinear2d") ? "bilinear"
                                                                 : l.Text("mode", "nearest");
  const bool corners = l.op().type.ends_with("Bilinear2d") || l.Bool("align_corners", false);
  const auto rank = l.Rank(x);
  if (!rank || *rank < 3) {
    l.Fail("the shape of its input is not known");
    return;
  }
  const auto spatial = static_cast<size_t>(*rank - 2);
  std::vector<int64_t> axes;
  for (size_t i = 0; i < spatial; ++i) axes.push_back(static_cast<int64_t>(i) + 2);
  L::Attributes attributes = {{"axes", axes}};
  if (mode == "nearest") {
    attributes.insert(attributes.end(), {{"mode", std::string("nearest")},
                                         {"coordinate_transformation_mode", std::string("asymmetric")},
                                         {"nearest_mode", std::string("floor")}});
  } else if (mode == "bilinear" || mode == "linear" || mode == "trilinear" || mode == "bicubic") {
    attributes.insert(attributes.end(), {{"mode", std::string(mode == "bicubic" ? "cubic" : "linear")},
                                         {"coordinate_transformation_mode",
                                          std::string(corners ? "align_corners" : "half_pixel")},
                                         {"cubic_coeff_a", -0.75f}});
  } else {
    l.Fail("the mode '", mode, "' is not known");
  }
  if (l.HasArgument("size") || l.Has("size")) {
    const ValueId sizes =
        l.HasArgument("size") ? l.Argument("size", 1) : l.Constants(l.Ints("size", spatial, 1));
    l.Output(0, l.Node("Resize", std::vector<ValueId>{x, kNoValue, kNoValue, sizes}, std::move(attributes)));
    return;
  }
  std::vector<double> factors = l.Floats("scale_factor");
  if (factors.size() == 1) factors.resize(spatial, factors[0]);
  if (factors.size() != spatial) {
    l.Fail("it has neither a size nor a scale_factor for ", spatial, " dimensions");
    return;
  }
  std::vector<ValueId> scales;
  for (const double factor : factors)
    scales.push_back(l.Node("Reshape", {l.ConstantFloat(factor), l.Constants({1})}));
  l.Output(
      0, l.Node("Resize", std::vector<ValueId>{x, kNoValue, l.Node("Concat", scales, {{"axis", int64_t{0}}})},
                std::move(attributes)));
}
void PixelShuffle(L& l) {
  l.Output(0, l.Node("DepthToSpace", {X(l)},
                     {{"blocksize", l.Int("upscale_factor", 1)}, {"mode", std::string("CRD")}}));
}
void Roll(L& l) {
  ValueId x = X(l);
  const std::vector<int64_t> shifts = l.Ints("shifts"), axes = l.Ints("dims");
  if (shifts.size() != axes.size())
    l.Fail("it has ", shifts.size(), " shifts for ", axes.size(), " dimensions");
  for (size_t i = 0; i < std::min(shifts.size(), axes.size()); ++i) {
    const auto part = [&](int64_t from, int64_t to) {
      return l.Node("Slice", {x, l.Constants({from}), l.Constants({to}), l.Constants({axes[i]})});
    };
    if (shifts[i] != 0)
      x = l.Node("Concat", {part(-shifts[i], kToTheEnd), part(0, -shifts[i])}, {{"axis", axes[i]}});
  }
  l.Output(0, x);
}

// --- types, reductions and the rest ---

std::optional<DType> TorchType(const std::string& name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"torch.float", DType::kF32},     {"torch.float32", DType::kF32}, {"torch.double", DType::kF64},
      {"torch.float64", DType::kF64},   {"torch.half", DType::kF16},    {"torch.float16", DType::kF16},
      {"torch.bfloat16", DType::kBf16}, {"torch.long", DType::kI64},    {"torch.int64", DType::kI64},
      {"torch.int", DType::kI32},       {"torch.int32", DType::kI32},   {"torch.short", DType::kI16},
      {"torch.int16", DType::kI16},     {"torch.int8", DType::kI8},     {"torch.uint8", DType::kU8},
      {"torch.bool", DType::kBool}};
  for (const auto& [torch, dtype] : kNames)
    if (torch == name) return dtype;
  return std::nullopt;
}
void To(L& l) {
  const ValueId x = X(l);
  if (!l.Has("dtype")) {
    l.Output(0, x);
    return;
  }
  const auto type = TorchType(l.Text("dtype", ""));
  if (!type) l.Fail("the type ", l.Text("dtype", ""), " is not known");
  l.Output(0, l.Cast(x, type.value_or(DType::kF32)));
}
void TypeAs(L& l) {
  l.Output(0, l.Cast(l.Input(0), l.TypeOf(l.Input(1))));
}
template <const char* kNode>
void Reduce(L& l) {
  const ValueId x = X(l);
  const std::vector<int64_t> axes = l.Ints("dim");
  const L::Attributes attributes = {{"keepdims", l.Bool("keepdim", false) ? int64_t{1} : 0}};
  l.Output(0,
           axes.empty() ? l.Node(kNode, {x}, attributes) : l.Node(kNode, {x, l.Constants(axes)}, attributes));
}
constexpr char kReduceMean[] = "ReduceMean", kReduceSum[] = "ReduceSum", kReduceMax[] = "ReduceMax",
               kReduceMin[] = "ReduceMin", kReduceProd[] = "ReduceProd",
               kReduceLogSumExp[] = "ReduceLogSumExp", kReduceL2[] = "ReduceL2";
template <bool kMax>
void ArgBest(L& l) {
  ValueId x = X(l);
  if (!l.Has("dim")) x = l.Node("Reshape", {x, l.Constants({-1})});
  l.Output(0, l.Node(kMax ? "ArgMax" : "ArgMin", {x},
                     {{"axis", l.Int("dim", 0)}, {"keepdims", l.Bool("keepdim", false) ? int64_t{1} : 0}},
                     DType::kI64));
}
template <bool kMax>
void Best(L& l) {
  if (!l.Has("dim")) {
    if (l.inputs() == 2)
      l.Output(0, l.Node(kMax ? "Max" : "Min", {l.Input(0), l.Input(1)}));
    else
      l.Output(0, l.Node(kMax ? kReduceMax : kReduceMin, {X(l)}, {{"keepdims", int64_t{0}}}));
    return;
  }
  const ValueId x = X(l);
  const int64_t axis = l.Int("dim", 0), keep = l.Bool("keepdim", false) ? 1 : 0;
  l.Output(0, l.Node(kMax ? kReduceMax : kReduceMin, {x, l.Constants({axis})}, {{"keepdims", keep}}));
  if (l.op().outputs.size() > 1)
    l.Output(1, l.Node(kMax ? "ArgMax" : "ArgMin", {x}, {{"axis", axis}, {"keepdims", keep}}, DType::kI64));
}
void TopK(L& l) {
  const std::vector<ValueId> out = l.NodeOf("TopK", {X(l), l.Constants({l.Int("k", 1)})}, 2,
                                            {{"axis", l.Int("dim", -1)},
                                             {"largest", l.Bool("largest", true) ? int64_t{1} : 0},
                                             {"sorted", int64_t{1}}});
  l.graph().value(out[0]).type.dtype = l.TypeOf(X(l));
  l.graph().value(out[1]).type.dtype = DType::kI64;
  l.Output(0, out[0]);
  if (l.op().outputs.size() > 1) l.Output(1, out[1]);
}
void CumSum(L& l) {
  l.Output(0, l.Node("CumSum", {X(l), l.ConstantInt(l.Int("dim", 0))}));
}
void Where(L& l) {
  const ValueId condition = l.Argument("condition", 0);
  ValueId a = l.Argument("input", 1), b = l.Argument("other", 2);
  b = l.Cast(b, l.TypeOf(a));
  l.Output(0, l.Node("Where", {condition, a, b}, {}, l.TypeOf(a)));
}
template <const char* kNode>
void Compare(L& l) {
  const ValueId x = X(l);
  const ValueId other =
      l.Has("other") ? l.Cast(l.ConstantFloat(l.Float("other", 0)), l.TypeOf(x)) : l.Argument("other", 1);
  l.Output(0, l.Node(kNode, {x, l.Cast(other, l.TypeOf(x))}, {}, DType::kBool));
}
constexpr char kEqual[] = "Equal", kLess[] = "Less", kLessOrEqual[] = "LessOrEqual", kGreater[] = "Greater",
               kGreaterOrEqual[] = "GreaterOrEqual";
void NotEqual(L& l) {
  const ValueId x = X(l);
  const ValueId other =
      l.Has("other") ? l.Cast(l.ConstantFloat(l.Float("other", 0)), l.TypeOf(x)) : l.Argument("other", 1);
  l.Output(0, l.Node("Not", {l.Node("Equal", {x, l.Cast(other, l.TypeOf(x))}, {}, DType::kBool)}, {},
                     DType::kBool));
}
void Norm(L& l) {
  if (l.Float("p", 2) != 2) l.Fail("a norm of order ", l.Float("p", 2), " is not known");
  Reduce<kReduceL2>(l);
}
void FillLike(L& l) {
  const ValueId x = X(l);
  const double value = l.op().type.starts_with("torch.ones")    ? 1
                       : l.op().type.starts_with("torch.zeros") ? 0
                                                                : l.Float("fill_value", 0);
  const DType type = TorchType(l.Text("dtype", "")).value_or(l.TypeOf(x));
  l.Output(0, l.Node("Expand", {l.Cast(l.ConstantFloat(value), type), l.ShapeOf(x)}));
}
void Fill(L& l) {
  const double value = l.op().type == "torch.ones"    ? 1
                       : l.op().type == "torch.zeros" ? 0
                                                      : l.Float("fill_value", 0);
  const DType type = TorchType(l.Text("dtype", "")).value_or(DType::kF32);
  const ValueId size = !l.Has("size") && l.inputs() > 0 ? l.Input(0) : l.Constants(l.Ints("size"));
  l.Output(0, l.Node("Expand", {l.Cast(l.ConstantFloat(value), type), size}));
}
void Arange(L& l) {
  const auto bound = [&](const char* key, int64_t otherwise) {
    return l.HasArgument(key) ? l.Argument(key, 0) : l.ConstantInt(l.Int(key, otherwise));
  };
  const ValueId range =
      l.Node("Range", {bound("start", 0), bound("end", 0), bound("step", 1)}, {}, DType::kI64);
  l.Output(0, l.Cast(range, TorchType(l.Text("dtype", "")).value_or(DType::kI64)));
}

constexpr PnnxRow kRows[] = {
    {"pnnx.Expression", LowerExpression},
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
    {"nn.Conv1d", Conv<1>},
    {"nn.Conv2d", Conv<2>},
    {"nn.Conv3d", Conv<3>},
    {"F.conv1d", Conv<1>},
    {"F.conv2d", Conv<2>},
    {"F.conv3d", Conv<3>},
    {"nn.ConvTranspose1d", ConvTranspose<1>},
    {"nn.ConvTranspose2d", ConvTranspose<2>},
    {"nn.ConvTranspose3d", ConvTranspose<3>},
    {"F.conv_transpose1d", ConvTranspose<1>},
    {"F.conv_transpose2d", ConvTranspose<2>},
    {"F.conv_transpose3d", ConvTranspose<3>},
    {"nn.Linear", Linear},
    {"F.linear", FLinear},
    {"torch.matmul", MatMul},
    {"torch.bmm", MatMul},
    {"torch.mm", MatMul},
    {"torch.addmm", AddMatMul},
    {"torch.baddbmm", AddMatMul},
    {"nn.Embedding", Embedding},
    {"F.embedding", Embedding},
    {"torch.einsum", Einsum},
    {"F.scaled_dot_product_attention", Attention},
    {"nn.MultiheadAttention", MultiheadAttention},
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
    {"Tensor.view", Reshape},
    {"Tensor.reshape", Reshape},
    {"torch.reshape", Reshape},
    {"torch.flatten", Flatten},
    {"nn.Flatten", Flatten},
    {"torch.unflatten", Unflatten},
    {"Tensor.unflatten", Unflatten},
    {"nn.Unflatten", Unflatten},
    {"torch.permute", Permute},
    {"Tensor.permute", Permute},
    {"torch.transpose", Transpose},
    {"Tensor.transpose", Transpose},
    {"torch.unsqueeze", Unsqueeze},
    {"torch.squeeze", Squeeze},
    {"Tensor.expand", Expand},
    {"Tensor.expand_as", ExpandAs},
    {"Tensor.repeat", Repeat},
    {"torch.tile", Repeat},
    {"torch.cat", Cat},
    {"torch.concat", Cat},
    {"torch.stack", Stack},
    {"torch.split", Split},
    {"torch.tensor_split", TensorSplit},
    {"torch.chunk", Chunk},
    {"torch.unbind", Unbind},
    {"Tensor.select", Select},
    {"torch.select", Select},
    {"Tensor.slice", Slice},
    {"torch.index_select", IndexSelect},
    {"torch.gather", Gather},
    {"Tensor.size", Size},
    {"F.pad", Pad},
    {"nn.ZeroPad2d", Pad},
    {"nn.ConstantPad1d", Pad},
    {"nn.ConstantPad2d", Pad},
    {"nn.ReflectionPad1d", Pad},
    {"nn.ReflectionPad2d", Pad},
    {"nn.ReplicationPad1d", Pad},
    {"nn.ReplicationPad2d", Pad},
    {"nn.Upsample", Resize},
    {"F.interpolate", Resize},
    {"F.upsample", Resize},
    {"nn.UpsamplingNearest2d", Resize},
    {"nn.UpsamplingBilinear2d", Resize},
    {"F.upsample_nearest", Resize},
    {"F.upsample_bilinear", Resize},
    {"nn.PixelShuffle", PixelShuffle},
    {"F.pixel_shuffle", PixelShuffle},
    {"torch.roll", Roll},
    {"Tensor.to", To},
    {"Tensor.type_as", TypeAs},
    {"torch.mean", Reduce<kReduceMean>},
    {"torch.sum", Reduce<kReduceSum>},
    {"torch.prod", Reduce<kReduceProd>},
    {"torch.amax", Reduce<kReduceMax>},
    {"torch.amin", Reduce<kReduceMin>},
    {"torch.logsumexp", Reduce<kReduceLogSumExp>},
    {"torch.norm", Norm},
    {"torch.argmax", ArgBest<true>},
    {"torch.argmin", ArgBest<false>},
    {"torch.max", Best<true>},
    {"torch.min", Best<false>},
    {"torch.topk", TopK},
    {"torch.cumsum", CumSum},
    {"torch.eq", Compare<kEqual>},
    {"torch.lt", Compare<kLess>},
    {"torch.le", Compare<kLessOrEqual>},
    {"torch.gt", Compare<kGreater>},
    {"torch.ge", Compare<kGreaterOrEqual>},
    {"torch.ne", NotEqual},
    {"torch.where", Where},
    {"torch.zeros_like", FillLike},
    {"torch.ones_like", FillLike},
    {"torch.full_like", FillLike},
    {"torch.zeros", Fill},
    {"torch.ones", Fill},
    {"torch.full", Fill},
    {"torch.arange", Arange},
};

}  // namespace

const PnnxRow* FindPnnxRow(std::string_view type) {
  for (const PnnxRow& row : kRows)
    if (row.type == type) return &row;
  return nullptr;
}

}  // namespace celer::graph
