#include "graph/passes/quantization.h"

#include <cmath>
#include <cstring>

#include "graph/ir/call_operator.h"
#include "graph/ir/operator_table.h"
#include "graph/ops/elements.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

const std::vector<int64_t> kToLast = {0, 2, 3, 1}, kToSecond = {0, 3, 1, 2};

// A constant, or what one node makes of constants: some files store weights as floats followed by a
// QuantizeLinear.
std::optional<Data> ConstantData(Rewriter& r, ValueId value) {
  if (const Constant* const constant = r.ConstantOf(value)) return Data::Of(constant->view());
  Node* const node = r.ProducedBy(value, "QuantizeLinear");
  if (!node) return std::nullopt;
  std::vector<Data> data;
  for (const ValueId id : node->inputs) {
    const Constant* const constant = r.ConstantOf(id);
    if (!constant) return std::nullopt;
    data.push_back(Data::Of(constant->view()));
  }
  std::vector<const Data*> inputs;
  for (const Data& one : data) inputs.push_back(&one);
  const Operator* const op = FindOperator(*node);
  std::vector<InferContext::Output> types(1);
  InferContext infer(*node, inputs, types);
  if (!op || !InferOutputs(*op, infer) || !types[0].set) return std::nullopt;
  auto made = NewTensor(types[0].dtype, types[0].shape);
  if (!made) return std::nullopt;
  std::vector<Data> out = {*made};
  KernelContext run(*node, inputs, out, DefaultThreadPool(), nullptr);
  if (!RunKernel(*op, op->reference, run)) return std::nullopt;
  return out[0];
}

double Element(const TensorView& tensor, int64_t i) {
  double out = 0;
  DispatchOr(tensor.dtype, NumberTypes{},
             [&]<class T>() { out = static_cast<double>(Wide(tensor.as<T>()[i])); });
  return out;
}

bool IsByte(DType dtype) {
  return dtype == DType::kU8 || dtype == DType::kI8;
}

ValueId InputAt(const Node& node, size_t i) {
  return i < node.inputs.size() ? node.inputs[i] : kNoValue;
}

// Constants of a DequantizeLinear: integers, scales and zero points, and the axis along which they run.
struct Stored {
  Data values = {};
  std::vector<double> scales = {}, zeros = {};  // one, or one per slice
  int axis = 0;
};
std::optional<Stored> StoredBehind(Rewriter& r, ValueId value) {
  Node* const node = r.ProducedBy(value, "DequantizeLinear");
  if (!node || node->Int("block_size", 0) != 0) return std::nullopt;
  const auto values = ConstantData(r, node->inputs[0]), scale = ConstantData(r, node->inputs[1]);
  if (!values || !scale || scale->tensor.dtype != DType::kF32 || scale->tensor.shape.rank() > 1)
    return std::nullopt;
  Stored out{.values = *values};
  const int64_t count = *scale->tensor.shape.elements();
  for (int64_t i = 0; i < count; ++i) {
    out.scales.push_back(Element(scale->tensor, i));
    if (!(out.scales.back() > 0) || !std::isfinite(out.scales.back())) return std::nullopt;
  }
  out.zeros.assign(out.scales.size(), 0);
  if (InputAt(*node, 2) != kNoValue) {
    const auto zero = ConstantData(r, InputAt(*node, 2));
    if (!zero || *zero->tensor.shape.elements() != count) return std::nullopt;
    for (int64_t i = 0; i < count; ++i) out.zeros[i] = Element(zero->tensor, i);
  }
  const int rank = values->tensor.shape.rank();
  int64_t axis = node->Int("axis", 1);
  axis += axis < 0 ? rank : 0;
  if (count > 1 && (axis < 0 || axis >= rank || values->tensor.shape[static_cast<int>(axis)] != count))
    return std::nullopt;
  out.axis = static_cast<int>(axis);
  return out;
}

}  // namespace

int32_t Quantization::QuantizeValue(float real) const {
  const float y = real / static_cast<float>(scale);
  if (std::isnan(y)) return 0;
  const ByteRange range = Range();
  return static_cast<int32_t>(std::clamp(std::nearbyint(static_cast<double>(y)) + zero,
                                         static_cast<double>(range.low), static_cast<double>(range.high)));
}

std::optional<Quantization> QuantizationOf(Rewriter& r, const Node& node) {
  if (node.Find("output_dtype") || node.Int("block_size", 0) != 0) return std::nullopt;
  const Constant* const scale = r.ConstantOf(node.inputs[1]);
  if (!scale || scale->dtype != DType::kF32 || scale->shape.elements() != 1 || scale->shape.rank() > 1)
    return std::nullopt;
  Quantization out;
  out.scale = ReadScalar(scale->view());
  if (!(out.scale > 0) || !std::isfinite(out.scale)) return std::nullopt;
  std::optional<DType> type = DType::kU8;
  if (const ValueId id = InputAt(node, 2); id != kNoValue) {
    const Constant* const zero = r.ConstantOf(id);
    if (!zero || zero->shape.elements() != 1) return std::nullopt;
    type = zero->dtype;
    if (IsByte(*type)) out.zero = static_cast<int32_t>(ReadScalar(zero->view()));
  } else if (node.op == "DequantizeLinear") {
    type = r.TypeOf(node.inputs[0]);
  }
  if (!type || !IsByte(*type)) return std::nullopt;
  out.is_signed = *type == DType::kI8;
  return out;
}

std::optional<Dequantized> DequantizedFrom(Rewriter& r, ValueId value) {
  Node* const node = r.ProducedBy(value, "DequantizeLinear");
  if (!node || r.ConstantOf(node->inputs[0])) return std::nullopt;
  const auto q = QuantizationOf(r, *node);
  if (!q) return std::nullopt;
  return Dequantized{node->inputs[0], *q};
}

std::optional<IntegerWeights> WeightsFrom(Rewriter& r, ValueId value, int axis, int64_t channels) {
  const auto stored = StoredBehind(r, value);
  if (!stored || !IsByte(stored->values.tensor.dtype)) return std::nullopt;
  const TensorView& tensor = stored->values.tensor;
  const bool each = stored->scales.size() > 1;
  if (axis >= tensor.shape.rank() || tensor.shape[axis] != channels || (each && stored->axis != axis))
    return std::nullopt;
  IntegerWeights out{.shape = tensor.shape, .values = {}, .scales = stored->scales};
  if (!each) out.scales.assign(channels, stored->scales[0]);
  int64_t inner = 1;
  for (int i = axis + 1; i < tensor.shape.rank(); ++i) inner *= tensor.shape[i];
  const int64_t count = *tensor.shape.elements();
  for (int64_t i = 0; i < count; ++i) {
    const double zero = stored->zeros[each ? static_cast<size_t>(i / inner % channels) : 0];
    const double whole = Element(tensor, i) - zero;
    if (whole < -128 || whole > 127) return std::nullopt;
    out.values.push_back(static_cast<int8_t>(whole));
  }
  return out;
}

std::optional<std::vector<double>> DequantizedConstant(Rewriter& r, ValueId value) {
  std::vector<double> out;
  if (const Constant* const constant = r.ConstantOf(value)) {
    if (constant->dtype != DType::kF32) return std::nullopt;
    for (const float number : FloatsOf(*constant)) out.push_back(number);
    return out;
  }
  const auto stored = StoredBehind(r, value);
  if (!stored || stored->values.tensor.shape.rank() != 1) return std::nullopt;
  const bool each = stored->scales.size() > 1;
  for (int64_t i = 0; i < stored->values.tensor.shape[0]; ++i) {
    const size_t at = each ? static_cast<size_t>(i) : 0;
    out.push_back((Element(stored->values.tensor, i) - stored->zeros[at]) * stored->scales[at]);
  }
  return out;
}

std::optional<ByteProduct> ByteProductOf(Rewriter& r, const Node& node) {
  const bool gemm = node.op == "Gemm";
  if ((!gemm && node.op != "MatMul") || !node.domain.empty()) return std::nullopt;
  const bool transposed = gemm && node.Int("transB", 0) != 0;
  if (gemm && (node.Float("alpha", 1) != 1 || node.Float("beta", 1) != 1 || node.Int("transA", 0) != 0))
    return std::nullopt;
  const auto x = DequantizedFrom(r, node.inputs[0]);
  const auto shape =
      r.ProducedBy(node.inputs[1], "DequantizeLinear") ? r.SampleOf(node.inputs[1]) : std::nullopt;
  if (!x || !shape || shape->rank() != 2 || *shape->elements() == 0) return std::nullopt;
  const int axis = transposed ? 0 : 1;
  ByteProduct out{.x = *x, .w = {}, .k = (*shape)[1 - axis], .n = (*shape)[axis]};
  auto w = WeightsFrom(r, node.inputs[1], axis, out.n);
  if (!w) return std::nullopt;
  out.w = std::move(*w);
  if (!transposed) {
    std::vector<int8_t> by_column(out.w.values.size());
    for (int64_t i = 0; i < out.k; ++i)
      for (int64_t j = 0; j < out.n; ++j) by_column[j * out.k + i] = out.w.values[i * out.n + j];
    out.w.values = std::move(by_column);
  }
  out.bias = gemm ? InputAt(node, 2) : kNoValue;
  return out;
}

ValueId AddInt8Constant(Rewriter& r, std::string name, DType dtype, const std::vector<int64_t>& dims,
                        const std::vector<int8_t>& bytes) {
  auto copy = std::make_shared<std::vector<int8_t>>(bytes);
  const auto view = std::as_bytes(std::span<const int8_t>(*copy));
  // shape: of numbers that are in memory
  return r.AddConstant(std::move(name), {dtype, Shape(dims), view, std::move(copy)});
}

ValueId AddInt32Constant(Rewriter& r, std::string name, const std::vector<int64_t>& dims,
                         const std::vector<int32_t>& numbers) {
  auto copy = std::make_shared<std::vector<int32_t>>(numbers);
  const auto view = std::as_bytes(std::span<const int32_t>(*copy));
  // shape: of numbers that are in memory
  return r.AddConstant(std::move(name), {DType::kI32, Shape(dims), view, std::move(copy)});
}

bool IsNhwc(Rewriter& r, ValueId value) {
  const Node* const node = r.ProducedBy(value, "Transpose");
  return node && node->Ints("perm") == kToSecond;
}

ValueId ToNhwc(Rewriter& r, ValueId value) {
  if (IsNhwc(r, value)) return r.ProducedBy(value, "Transpose")->inputs[0];
  const std::string name = r.graph().value(value).name + ".channels_last";
  for (const Node& node : r.graph().nodes)
    if (node.op == "Transpose" && node.inputs[0] == value && node.Ints("perm") == kToLast)
      return node.outputs[0];
  return r
      .Add({.op = "Transpose",
            .name = name,
            .opset = 13,
            .inputs = {value},
            .attributes = {{"perm", kToLast}}},
           name)
      .outputs[0];
}

void TransposeToNchw(Rewriter& r, size_t n, ValueId value) {
  Node& node = r.node(n);
  node = {.op = "Transpose",
          .name = r.graph().value(value).name + ".channels_second",
          .opset = 13,
          .inputs = {value},
          .outputs = node.outputs,
          .attributes = {{"perm", kToSecond}}};
  r.Recount();
}

}  // namespace celer::graph
