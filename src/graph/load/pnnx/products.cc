// Convolutions, matrix products, embeddings and attention.
#include <algorithm>
#include <cmath>

#include "graph/load/pnnx/modules.h"

namespace celer::graph {
namespace {

using L = Lowering;

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
  ValueId x = FirstInput(l), weight = l.Weight("weight"), bias = l.Weight("bias");
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
  l.Output(0, l.Node("ConvTranspose", std::vector<ValueId>{FirstInput(l), weight, bias},
                     {{"strides", l.Ints("stride", kDims, 1)},
                      {"dilations", l.Ints("dilation", kDims, 1)},
                      {"group", l.Int("groups", 1)},
                      {"output_padding", l.Ints("output_padding", kDims, 0)},
                      {"pads", pads}}));
}

void Linear(L& l) {
  const ValueId bias = l.Weight("bias");
  const ValueId product = l.Node("MatMul", {FirstInput(l), l.Transposed("weight")});
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
  const ValueId product = l.Node("MatMul", {FirstInput(l), SwapLast(l, l.Argument("weight", 1))});
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
  const ValueId out = l.Node("Gather", {table, FirstInput(l)}, {{"axis", int64_t{0}}});
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
constexpr int64_t kMostWidth = 1 << 24;

// A mask of nn.MultiheadAttention as Attend wants it: [queries, keys], or [batch, heads, queries, keys] where
// the file has [batch * heads, queries, keys]; and true for what is seen, where the file has what is not.
ValueId HeadMask(L& l, ValueId mask, int64_t heads) {
  const auto rank = l.Rank(mask);
  if (!rank || (*rank != 2 && *rank != 3)) return l.Fail("its mask has neither two nor three dimensions");
  const DType type = l.TypeOf(mask);
  if (type == DType::kBool) mask = l.Node("Not", {mask}, {}, type);
  if (*rank == 2) return mask;
  const ValueId rows =
      l.Node("Slice", {l.ShapeOf(mask), l.Constants({1}), l.Constants({3})}, {}, DType::kI64);
  const ValueId shape =
      l.Node("Concat", {l.Constants({-1, heads}), rows}, {{"axis", int64_t{0}}}, DType::kI64);
  return l.Node("Reshape", {mask, shape}, {}, type);
}
void MultiheadAttention(L& l) {
  const int64_t heads = l.Int("num_heads", 1), width = l.Int("embed_dim", 0);
  if (heads < 1 || width < 1 || width > kMostWidth || width % heads != 0) {
    l.Fail("embed_dim ", width, " is not divided by num_heads ", heads);
    return;
  }
  const bool batch_first = l.Bool("batch_first", false);
  const ValueId in_weight = l.Weight("in_proj_weight"), in_bias = l.Weight("in_proj_bias");
  if (in_weight == kNoValue || l.Bool("add_zero_attn", false) || l.Bool("add_bias_kv", false)) {
    l.Fail("only one matrix for queries, keys and values, without added rows, is known");
    return;
  }
  if (l.HasArgument("key_padding_mask")) {
    l.Fail("a key_padding_mask is not known; add it to attn_mask");
    return;
  }
  // One input stands for queries, keys and values, a second one for keys and values; the mask is by its name.
  ValueId mask = l.HasArgument("attn_mask") ? l.Argument("attn_mask", 3) : kNoValue;
  std::vector<ValueId> given;
  for (size_t i = 0; i < l.inputs(); ++i)
    if (const ValueId x = l.Input(i); x != mask) given.push_back(x);
  if (given.empty() || given.size() > 3) {
    l.Fail("it has ", given.size(), " inputs beside the mask");
    return;
  }
  std::vector<ValueId> in;
  for (size_t i = 0; i < 3; ++i) {
    ValueId x = given[std::min(i, given.size() - 1)];
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
  if (mask != kNoValue) mask = HeadMask(l, mask, heads);
  ValueId y = Attend(l, in[0], in[1], in[2], mask, false, 1 / std::sqrt(static_cast<double>(width / heads)));
  y = l.Node("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  y = l.Node("Reshape", {y, l.Constants({0, 0, width})});
  y = l.Node("MatMul", {y, l.Transposed("out_proj.weight")});
  if (const ValueId bias = l.Weight("out_proj.bias"); bias != kNoValue) y = l.Node("Add", {y, bias});
  if (!batch_first) y = l.Node("Transpose", {y}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
  l.Output(0, y);
}

constexpr PnnxRow kRows[] = {
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
};

}  // namespace

std::span<const PnnxRow> PnnxProducts() {
  return kRows;
}

}  // namespace celer::graph
