// Quantized operators that ONNX Runtime's quantizer writes (QOperator), as float operators between
// DequantizeLinear and QuantizeLinear (QDQ). The pass use-integers makes integer operators of them again.
#include <cstring>

#include "graph/load/microsoft/expansion.h"

namespace celer::graph {
namespace {

// Scales and zero points of one element may be lists of one; as scalars they say that they are for all.
ValueId AsScalar(Expansion& e, ValueId value) {
  const Constant* const constant = e.ConstantOf(value);
  if (!constant || constant->shape.rank() != 1 || constant->shape[0] != 1) return value;
  Constant scalar = *constant;
  scalar.shape = Shape{};
  return e.AddConstant(std::move(scalar));
}

ValueId Real(Expansion& e, ValueId bytes, ValueId scale, ValueId zero, int64_t axis = 1) {
  return e.Add("DequantizeLinear", {bytes, AsScalar(e, scale), AsScalar(e, zero)}, {{"axis", axis}}, 13);
}
// Inputs at, at + 1 and at + 2.
ValueId Real(Expansion& e, size_t at) {
  return Real(e, e.In(at), e.In(at + 1), e.In(at + 2));
}
ValueId Bytes(Expansion& e, ValueId real, size_t scale) {
  return e.Add("QuantizeLinear", {real, AsScalar(e, e.In(scale)), AsScalar(e, e.In(scale + 1))}, {}, 13);
}
// A zero point that is not given is that of u8.
void GiveBytes(Expansion& e, ValueId real, size_t scale) {
  e.Give(0, Bytes(e, real, scale));
}

void QLinearPair(Expansion& e) {
  GiveBytes(e, e.Add(e.node().op == "QLinearAdd" ? "Add" : "Mul", {Real(e, 0), Real(e, 3)}), 6);
}
void QLinearUnary(Expansion& e) {
  const std::string op = e.node().op.substr(7);  // behind "QLinear"
  Expansion::Attributes attributes;
  if (op == "LeakyRelu") attributes.emplace_back("alpha", e.node().Float("alpha", 0.01f));
  GiveBytes(e, e.Add(op, {Real(e, 0)}, std::move(attributes)), 3);
}
void QLinearSoftmax(Expansion& e) {
  const int64_t opset = e.node().Int("opset", 13);
  if (opset < 1 || opset > 1000) e.Fail("an opset of ", opset);
  GiveBytes(e,
            e.Add("Softmax", {Real(e, 0)}, {{"axis", e.node().Int("axis", opset < 13 ? 1 : -1)}},
                  opset < 13 ? 12 : 13),
            3);
}
void QLinearReduceMean(Expansion& e) {
  GiveBytes(e, e.Add("ReduceMean", {Real(e, 0)}, e.AttributesBut({}), 13), 3);
}
void QLinearWhere(Expansion& e) {
  GiveBytes(e, e.Add("Where", {e.In(0), Real(e, 1), Real(e, 4)}), 7);
}
void QLinearConcat(Expansion& e) {
  std::vector<ValueId> parts;
  for (size_t i = 2; i + 1 < e.node().inputs.size(); i += 3) parts.push_back(Real(e, i));
  GiveBytes(e, e.Add("Concat", std::move(parts), {{"axis", e.node().Int("axis", 0)}}), 0);
}

// NHWC to NCHW, and back.
ValueId ChannelsFirst(Expansion& e, ValueId x, int64_t spatial) {
  std::vector<int64_t> order{0, spatial + 1};
  for (int64_t i = 1; i <= spatial; ++i) order.push_back(i);
  return e.Transpose(x, std::move(order));
}
ValueId ChannelsBack(Expansion& e, ValueId x, int64_t spatial) {
  std::vector<int64_t> order{0};
  for (int64_t i = 1; i <= spatial; ++i) order.push_back(i + 1);
  order.push_back(1);
  return e.Transpose(x, std::move(order));
}
// `op` on the image that input 0 is, quantized as inputs 1 to 4 say.
void QLinearPool(Expansion& e) {
  const bool global = e.node().op == "QLinearGlobalAveragePool";
  const bool last = e.node().Int("channels_last", 0) != 0;
  int64_t spatial = static_cast<int64_t>(e.node().Ints("kernel_shape").size());
  if (global) spatial = e.Rank(e.In(0)).value_or(4) - 2;
  if (last && (spatial < 1 || spatial > 4)) e.Fail("an image of ", spatial, " dimensions");
  const ValueId x = last ? ChannelsFirst(e, e.In(0), spatial) : e.In(0);
  ValueId y = e.Add(global ? "GlobalAveragePool" : "AveragePool", {Real(e, x, e.In(1), e.In(2))},
                    e.AttributesBut({"channels_last"}));
  y = Bytes(e, y, 3);
  e.Give(0, last ? ChannelsBack(e, y, spatial) : y);
}

// The product of two scales of one element, or of one and several; computed here if they are constants, so
// that passes see numbers.
ValueId ScaleProduct(Expansion& e, ValueId a, ValueId b) {
  const Constant *const x = e.ConstantOf(a), *const y = e.ConstantOf(b);
  if (!x || !y || x->dtype != DType::kF32 || y->dtype != DType::kF32 || x->shape.elements() != 1 ||
      y->shape.rank() > 1)
    return e.Add("Mul", {a, b});
  float by = 1;
  std::memcpy(&by, x->bytes.data(), sizeof(by));
  auto numbers = std::make_shared<std::vector<float>>(static_cast<size_t>(*y->shape.elements()));
  std::memcpy(numbers->data(), y->bytes.data(), y->bytes.size());
  for (float& number : *numbers) number *= by;
  const auto bytes = std::as_bytes(std::span<const float>(*numbers));
  return e.AddConstant({DType::kF32, y->shape, bytes, numbers});
}

// A, scale, zero, B, scale, zero, C (i32, in units of both scales), scale, zero: the last two if the result
// is bytes.
void QGemm(Expansion& e) {
  const Node& node = e.node();
  const bool transposed = node.Int("transB", 0) != 0;
  const float alpha = node.Float("alpha", 1);
  const ValueId a = Real(e, 0), b = Real(e, e.In(3), e.In(4), e.In(5), transposed ? 0 : 1);
  ValueId c = kNoValue;
  if (e.Has(6)) {
    const ValueId unit = ScaleProduct(e, e.In(1), e.In(4));
    const bool columns = e.Rank(e.In(6)).value_or(1) != 1;
    c = e.Add("DequantizeLinear", {e.In(6), AsScalar(e, unit)}, {{"axis", int64_t{columns ? 1 : 0}}}, 13);
  }
  const ValueId y = e.Add("Gemm", {a, b, c},
                          {{"transA", node.Int("transA", 0)},
                           {"transB", node.Int("transB", 0)},
                           {"alpha", alpha},
                           {"beta", alpha}});
  if (e.Has(7))
    GiveBytes(e, y, 7);
  else
    e.Give(0, y);
}

// An integer product in units of both scales, as a float.
ValueId Product(Expansion& e, ValueId a, ValueId b, ValueId a_zero, ValueId b_zero, ValueId a_scale,
                ValueId b_scale, ValueId bias) {
  const ValueId sums = e.Add("MatMulInteger", {a, b, a_zero, b_zero});
  const ValueId reals = e.Add("Cast", {sums}, {{"to", int64_t{1}}});
  const ValueId y = e.Add("Mul", {reals, e.Add("Mul", {a_scale, b_scale})});
  return bias == kNoValue ? y : e.Add("Add", {y, bias});
}
// A, B, A's scale, B's scale, A's zero, B's zero, bias
void MatMulIntegerToFloat(Expansion& e) {
  e.Give(0, Product(e, e.In(0), e.In(1), e.In(4), e.In(5), e.In(2), e.In(3), e.In(6)));
}
// A (reals), B, B's scale, B's zero, bias
void DynamicQuantizeMatMul(Expansion& e) {
  const auto a = e.AddMany("DynamicQuantizeLinear", {e.In(0)}, 3, {}, 11);
  e.Give(0, Product(e, a[0], e.In(1), a[2], e.In(3), a[1], e.In(2), e.In(4)));
}

// input, weight, bias, input's scale, weight's scale, mask, input's zero, weight's zero, past
void QAttention(Expansion& e) {
  const Constant* const weights = e.ConstantOf(e.In(1));
  if (!weights || weights->shape.rank() != 2) {
    e.Fail("its weights are no constant matrix");
    return;
  }
  const int64_t columns = weights->shape[1];
  if (columns % 3 != 0) e.Fail("weights of ", columns, " columns, which are not three matrices");
  const ValueId qkv = Product(e, e.In(0), e.In(1), e.In(6), e.In(7), e.In(3), e.In(4), e.In(2));
  AttendPacked(e, {.qkv = qkv,
                   .sizes = {columns / 3, columns / 3, columns / 3},
                   .mask = e.In(5),
                   .past = e.In(8),
                   .bias = kNoValue});
}

// X, W, R, B, lengths, h, c, P, W's scale, W's zero, R's scale, R's zero. W is [directions, columns, 4 ·
// hidden], transposed against LSTM's. Weights become reals; so do the inputs, which ONNX Runtime would
// quantize at each step.
void DynamicQuantizeLstm(Expansion& e) {
  const auto weights = [&](ValueId w, ValueId scale, ValueId zero) {
    const ValueId shape = e.Ints({0, 1, -1});  // [directions], or [directions, 4 · hidden]
    const auto spread = [&](ValueId value) {
      const auto rank = e.Rank(value);
      if (rank && *rank == 2) return e.Add("Unsqueeze", {value, e.Ints({1})});
      return e.Add("Reshape", {value, shape});
    };
    const Expansion::Attributes real{{"to", int64_t{1}}};
    const ValueId centered = e.Add("Sub", {e.Add("Cast", {w}, real), spread(e.Add("Cast", {zero}, real))});
    return e.Transpose(e.Add("Mul", {centered, spread(scale)}), {0, 2, 1});
  };
  const auto made =
      e.AddMany("LSTM",
                {e.In(0), weights(e.In(1), e.In(8), e.In(9)), weights(e.In(2), e.In(10), e.In(11)), e.In(3),
                 e.In(4), e.In(5), e.In(6), e.In(7)},
                std::max<size_t>(1, e.node().outputs.size()), e.AttributesBut({}), 14);
  for (size_t i = 0; i < made.size(); ++i) e.Give(i, made[i]);
}

// The operators of ONNX, with the types that later opsets gave them.
void QuantizeLinear(Expansion& e) {
  e.Give(0, e.Add("QuantizeLinear", {e.In(0), AsScalar(e, e.In(1)), AsScalar(e, e.In(2))},
                  e.AttributesBut({}), 21));
}
void DequantizeLinear(Expansion& e) {
  e.Give(0, e.Add("DequantizeLinear", {e.In(0), AsScalar(e, e.In(1)), AsScalar(e, e.In(2))},
                  e.AttributesBut({}), 21));
}

constexpr std::string_view kMicrosoft = "com.microsoft";
constexpr ExpansionRow kQuantizedRows[] = {
    {kMicrosoft, "DequantizeLinear", DequantizeLinear},
    {kMicrosoft, "DynamicQuantizeLSTM", DynamicQuantizeLstm},
    {kMicrosoft, "DynamicQuantizeMatMul", DynamicQuantizeMatMul},
    {kMicrosoft, "MatMulIntegerToFloat", MatMulIntegerToFloat},
    {kMicrosoft, "QAttention", QAttention},
    {kMicrosoft, "QGemm", QGemm},
    {kMicrosoft, "QLinearAdd", QLinearPair},
    {kMicrosoft, "QLinearAveragePool", QLinearPool},
    {kMicrosoft, "QLinearConcat", QLinearConcat},
    {kMicrosoft, "QLinearConv", ExpandQLinearConv},
    {kMicrosoft, "QLinearGlobalAveragePool", QLinearPool},
    {kMicrosoft, "QLinearLeakyRelu", QLinearUnary},
    {kMicrosoft, "QLinearMul", QLinearPair},
    {kMicrosoft, "QLinearReduceMean", QLinearReduceMean},
    {kMicrosoft, "QLinearSigmoid", QLinearUnary},
    {kMicrosoft, "QLinearSoftmax", QLinearSoftmax},
    {kMicrosoft, "QLinearWhere", QLinearWhere},
    {kMicrosoft, "QuantizeLinear", QuantizeLinear},
};

}  // namespace

// x, scale, zero, w, scale, zero, y's scale, zero, bias (i32, in units of both scales)
void ExpandQLinearConv(Expansion& e) {
  const Node& node = e.node();
  const bool last = node.Int("channels_last", 0) != 0;
  const int64_t spatial = e.Rank(e.In(3)).value_or(4) - 2;
  if (last && (spatial < 1 || spatial > 4)) e.Fail("an image of ", spatial, " dimensions");
  const ValueId image = last ? ChannelsFirst(e, e.In(0), spatial) : e.In(0);
  const ValueId x = Real(e, image, e.In(1), e.In(2)), w = Real(e, e.In(3), e.In(4), e.In(5), 0);
  ValueId bias = kNoValue;
  if (e.Has(8))
    bias = e.Add("DequantizeLinear", {e.In(8), AsScalar(e, ScaleProduct(e, e.In(1), e.In(4)))},
                 {{"axis", int64_t{0}}}, 13);
  const ValueId y = Bytes(e, e.Add("Conv", {x, w, bias}, e.AttributesBut({"channels_last"})), 6);
  e.Give(0, last ? ChannelsBack(e, y, spatial) : y);
}

// a, scale, zero, b, scale, zero, y's scale, zero
void ExpandQLinearMatMul(Expansion& e) {
  GiveBytes(e, e.Add("MatMul", {Real(e, 0), Real(e, 3)}), 6);
}

std::span<const ExpansionRow> QuantizedExpansions() {
  return kQuantizedRows;
}

}  // namespace celer::graph
