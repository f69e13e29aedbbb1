// Convolutions, products, activations, normalizations and embeddings that ONNX Runtime's optimizer fuses.
#include "graph/load/microsoft/expansion.h"

namespace celer::graph {

ValueId Activate(Expansion& e, ValueId x, std::string_view name, std::optional<float> alpha,
                 std::optional<float> beta) {
  Expansion::Attributes attributes;
  if (alpha) attributes.emplace_back("alpha", *alpha);
  if (beta) attributes.emplace_back("beta", *beta);
  if (name.empty()) return x;
  for (const std::string_view plain : {"Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"})
    if (name == plain) return e.Add(name, {x});
  if (name == "HardSigmoid") return e.Add(name, {x}, std::move(attributes));
  if (name == "LeakyRelu" || name == "Elu" || name == "ThresholdedRelu") {
    std::erase_if(attributes, [](const auto& one) { return one.first == "beta"; });
    return e.Add(name, {x}, std::move(attributes));
  }
  if (name == "Clip")
    return e.Add(name, {x, alpha ? e.Float(*alpha, x) : kNoValue, beta ? e.Float(*beta, x) : kNoValue});
  return e.Fail("the activation '", std::string(name), "' is not known");
}

namespace {

void FusedConv(Expansion& e) {
  const Node& node = e.node();
  ValueId y = e.Add("Conv", {e.In(0), e.In(1), e.In(2)}, e.AttributesBut({"activation"}));
  if (e.Has(3)) y = e.Add("Add", {y, e.In(3)});
  const std::vector<float> params = node.Floats("activation_params");
  const auto param = [&](size_t i) {
    return i < params.size() ? std::optional<float>(params[i]) : std::nullopt;
  };
  e.Give(0, Activate(e, y, node.Text("activation", ""), param(0), param(1)));
}

ValueId FusedActivation(Expansion& e, ValueId y) {
  const auto param = [&](const char* key) {
    const auto* const given = e.node().Get<float>(key);
    return given ? std::optional<float>(*given) : std::nullopt;
  };
  return Activate(e, y, e.node().Text("activation", ""), param("activation_alpha"), param("activation_beta"));
}

void FusedGemm(Expansion& e) {
  const ValueId y = e.Add("Gemm", {e.In(0), e.In(1), e.In(2)}, e.AttributesBut({"activation"}));
  e.Give(0, FusedActivation(e, y));
}

// One side of a product: its last two dimensions exchanged, or the first moved behind the other leading ones.
ValueId Side(Expansion& e, ValueId x, bool last, bool batch) {
  if (!last && !batch) return x;
  const auto rank = e.Rank(x);
  if (rank && *rank < 2) return x;
  if (!rank || *rank > 8) {  // any number of dimensions
    const char* const equation = last && batch ? "i...j->...ji" : last ? "...ij->...ji" : "i...j->...ij";
    return e.Add("Einsum", {x}, {{"equation", std::string(equation)}});
  }
  std::vector<int64_t> order;
  for (int64_t i = 0; i < *rank; ++i) order.push_back(i);
  if (batch) {
    order.erase(order.begin());
    order.insert(order.end() - 1, 0);
  }
  if (last) std::swap(order[order.size() - 1], order[order.size() - 2]);
  return e.Transpose(x, std::move(order));
}

void FusedMatMul(Expansion& e) {
  const Node& node = e.node();
  const ValueId a = Side(e, e.In(0), node.Int("transA", 0) != 0, node.Int("transBatchA", 0) != 0),
                b = Side(e, e.In(1), node.Int("transB", 0) != 0, node.Int("transBatchB", 0) != 0);
  ValueId y = e.Add("MatMul", {a, b});
  if (const float alpha = node.Float("alpha", 1); alpha != 1) y = e.Add("Mul", {y, e.Float(alpha, e.In(0))});
  e.Give(0, FusedActivation(e, y));
}

ValueId WithBias(Expansion& e, ValueId x, size_t bias) {
  return e.Has(bias) ? e.Add("Add", {x, e.In(bias)}) : x;
}

void Gelu(Expansion& e) {
  e.Give(0, e.Add("Gelu", {WithBias(e, e.In(0), 1)}, {}, 20));
}
void FastGelu(Expansion& e) {
  e.Give(0, e.Add("Gelu", {WithBias(e, e.In(0), 1)}, {{"approximate", std::string("tanh")}}, 20));
}
void QuickGelu(Expansion& e) {
  e.Give(0, e.Add("Swish", {e.In(0)}, {{"alpha", e.node().Float("alpha", 1.702f)}}, 24));
}

// The same operator of ONNX, at the opset that has it as it is written here.
void AsOnnx(Expansion& e, int opset) {
  const Node& node = e.node();
  const auto made = e.AddMany(node.op, node.inputs, node.outputs.size(), e.AttributesBut({}), opset);
  for (size_t i = 0; i < made.size(); ++i) e.Give(i, made[i]);
}
// Outputs that nobody wants do not get a name, for operators that look at how many there are.
void LayerNormalization(Expansion& e) {
  const Node& node = e.node();
  const size_t outputs = e.Wants(2) ? 3 : e.Wants(1) ? 2 : 1;
  const auto made = e.AddMany("LayerNormalization", node.inputs, outputs, e.AttributesBut({}), 17);
  for (size_t i = 0; i < made.size(); ++i) e.Give(i, made[i]);
}

// 1 / sqrt(mean of squares + epsilon) over the last dimensions.
ValueId InverseRms(Expansion& e, ValueId x, float epsilon) {
  const ValueId squares = e.Add("ReduceMean", {e.Add("Mul", {x, x}), e.Ints({-1})});
  return e.Add("Reciprocal", {e.Add("Sqrt", {e.Add("Add", {squares, e.Float(epsilon, x)})})});
}

void SimplifiedLayerNormalization(Expansion& e) {
  const Node& node = e.node();
  const float epsilon = node.Float("epsilon", 1e-5f);
  const int64_t axis = node.Int("axis", -1);
  e.Give(0, e.Add("RMSNormalization", {e.In(0), e.In(1)}, {{"axis", axis}, {"epsilon", epsilon}}, 23));
  if (!e.Wants(1)) return;
  if (axis != -1) e.Fail("its second output is supported for the axis -1, and this is ", axis);
  e.Give(1, InverseRms(e, e.In(0), epsilon));
}

// What is normalized: input + skip + bias.
ValueId SkipSum(Expansion& e, size_t bias) {
  return WithBias(e, e.Add("Add", {e.In(0), e.In(1)}), bias);
}
void SkipLayerNormalization(Expansion& e) {
  const ValueId sum = SkipSum(e, 4);
  const size_t outputs = e.Wants(2) ? 3 : e.Wants(1) ? 2 : 1;
  const auto made = e.AddMany("LayerNormalization", {sum, e.In(2), e.In(3)}, outputs,
                              {{"axis", int64_t{-1}}, {"epsilon", e.node().Float("epsilon", 1e-12f)}}, 17);
  for (size_t i = 0; i < made.size(); ++i) e.Give(i, made[i]);
  e.Give(3, sum);
}
void SkipSimplifiedLayerNormalization(Expansion& e) {
  const ValueId sum = SkipSum(e, 3);
  const float epsilon = e.node().Float("epsilon", 1e-12f);
  e.Give(0, e.Add("RMSNormalization", {sum, e.In(2)}, {{"axis", int64_t{-1}}, {"epsilon", epsilon}}, 23));
  if (e.Wants(1)) e.Fail("its output of means is not supported");
  if (e.Wants(2)) e.Give(2, InverseRms(e, sum, epsilon));
  e.Give(3, sum);
}

// ids, segments, words, positions, segments' table, gamma, beta, mask, position ids
struct Embedding {
  ValueId words, positions, segments, gamma, beta, mask, position_ids;
};
void Embed(Expansion& e, const Embedding& from) {
  const ValueId ids = e.In(0);
  ValueId sum = e.Add("Gather", {from.words, ids});
  ValueId places = kNoValue;
  if (from.position_ids != kNoValue)
    places = e.Add("Gather", {from.positions, from.position_ids});
  else
    places = e.Add("Slice", {from.positions, e.Ints({0}), e.SizeOf(ids, 1), e.Ints({0})});
  sum = e.Add("Add", {sum, places});
  if (e.Has(1) && from.segments != kNoValue)
    sum = e.Add("Add", {sum, e.Add("Gather", {from.segments, e.In(1)})});
  e.Give(0, e.Add("LayerNormalization", {sum, from.gamma, from.beta},
                  {{"axis", int64_t{-1}}, {"epsilon", e.node().Float("epsilon", 1e-12f)}}, 17));
  if (e.Wants(1)) {
    // How many tokens of each sequence are none of padding.
    const Expansion::Attributes i32{{"to", int64_t{6}}};
    if (from.mask != kNoValue)
      e.Give(1,
             e.Add("Cast", {e.Add("ReduceSum", {from.mask, e.Ints({1})}, {{"keepdims", int64_t{0}}})}, i32));
    else
      e.Give(1, e.Add("Cast", {e.Add("ConstantOfShape", {e.SizeOf(ids, 0)})}, i32));
  }
  e.Give(2, sum);
}
void EmbedLayerNormalization(Expansion& e) {
  Embed(e, {.words = e.In(2),
            .positions = e.In(3),
            .segments = e.In(4),
            .gamma = e.In(5),
            .beta = e.In(6),
            .mask = e.In(7),
            .position_ids = e.In(8)});
}
// The same with tables of bytes: 5 scales and 5 zero points behind the mask.
void QEmbedLayerNormalization(Expansion& e) {
  const auto table = [&](size_t i) {
    if (!e.Has(2 + i)) return kNoValue;
    return e.Add("DequantizeLinear", {e.In(2 + i), e.In(8 + i), e.In(13 + i)}, {}, 13);
  };
  Embed(e, {.words = table(0),
            .positions = table(1),
            .segments = table(2),
            .gamma = table(3),
            .beta = table(4),
            .mask = e.In(7),
            .position_ids = kNoValue});
}

void Trilu(Expansion& e) {
  AsOnnx(e, 14);
}
void GridSample(Expansion& e) {
  AsOnnx(e, 16);
}
void NhwcMaxPool(Expansion& e) {
  const auto kernel = static_cast<int64_t>(e.node().Ints("kernel_shape").size());
  if (kernel < 1 || kernel > 4) e.Fail("a window of ", kernel, " dimensions");
  std::vector<int64_t> first{0, kernel + 1}, last{0};
  for (int64_t i = 1; i <= kernel; ++i) {
    first.push_back(i);
    last.push_back(i + 1);
  }
  last.push_back(1);
  const ValueId x = e.Transpose(e.In(0), first);
  e.Give(0, e.Transpose(e.Add("MaxPool", {x}, e.AttributesBut({})), last));
}

constexpr std::string_view kMs = "com.microsoft";
constexpr ExpansionRow kRows[] = {
    {kMs, "BiasGelu", Gelu},
    {kMs, "EmbedLayerNormalization", EmbedLayerNormalization},
    {kMs, "FastGelu", FastGelu},
    {kMs, "FusedConv", FusedConv},
    {kMs, "FusedGemm", FusedGemm},
    {kMs, "FusedMatMul", FusedMatMul},
    {kMs, "FusedMatMulActivation", FusedMatMul},
    {kMs, "Gelu", Gelu},
    {kMs, "GridSample", GridSample},
    {"", "LayerNormalization", LayerNormalization, 16},
    {kMs, "NhwcMaxPool", NhwcMaxPool},
    {kMs, "QEmbedLayerNormalization", QEmbedLayerNormalization},
    {kMs, "QuickGelu", QuickGelu},
    {"", "SimplifiedLayerNormalization", SimplifiedLayerNormalization},
    {kMs, "SimplifiedLayerNormalization", SimplifiedLayerNormalization},
    {kMs, "SkipLayerNormalization", SkipLayerNormalization},
    {kMs, "SkipSimplifiedLayerNormalization", SkipSimplifiedLayerNormalization},
    {kMs, "TransposeMatMul", FusedMatMul},
    {kMs, "Trilu", Trilu},
};

}  // namespace

std::span<const ExpansionRow> FusedExpansions() {
  return kRows;
}

}  // namespace celer::graph
