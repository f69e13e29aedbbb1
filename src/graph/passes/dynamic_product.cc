// Integer products with a float result. Those whose left side is dynamically quantized:
// DynamicQuantizeLinear, MatMulInteger, a Cast, the scales, and perhaps a bias are fused into one operator.
// And those between DequantizeLinear and an output, or a float operator.
#include "graph/ops/fast/fast.h"
#include "graph/ops/quant/integer.h"
#include "graph/passes/quantization.h"

namespace celer::graph {
namespace {

// The other input of a node with two.
ValueId Other(const Node& node, ValueId one) {
  return node.inputs[0] == one ? node.inputs[1] : node.inputs[0];
}

// The only reader of a value, if it is this operator.
std::optional<size_t> OnlyReader(Rewriter& r, ValueId value, std::string_view op) {
  if (r.Readers(value) != 1) return std::nullopt;
  for (size_t n = 0; n < r.nodes(); ++n) {
    const Node& node = r.node(n);
    if (r.removed(n) || node.op != op || !node.domain.empty()) continue;
    for (const ValueId id : node.inputs)
      if (id == value) return n;
  }
  return std::nullopt;
}

bool IsZero(Rewriter& r, ValueId value) {
  if (value == kNoValue) return true;
  const Constant* const zero = r.ConstantOf(value);
  if (!zero) return false;
  for (const std::byte byte : zero->bytes)
    if (byte != std::byte{0}) return false;
  return true;
}

std::optional<std::vector<float>> ScalesFor(Rewriter& r, ValueId value, int64_t n) {
  const Constant* const scale = r.ConstantOf(value);
  if (!scale || scale->dtype != DType::kF32 || scale->shape.rank() > 1) return std::nullopt;
  std::vector<float> out = FloatsOf(*scale);
  if (out.size() == 1) out.assign(n, out[0]);
  if (static_cast<int64_t>(out.size()) != n) return std::nullopt;
  return out;
}

// The bias that is added to a value and to nothing else: [columns] floats, perhaps stored as integers. `last`
// is the node that gives the sum.
std::optional<std::vector<double>> AddedTo(Rewriter& r, ValueId value, int64_t columns, size_t* last) {
  const auto add = OnlyReader(r, value, "Add");
  if (!add) return std::nullopt;
  const ValueId other = Other(r.node(*add), value);
  const auto shape = r.SampleOf(other);
  if (!shape || shape->rank() != 1 || (*shape)[0] != columns) return std::nullopt;
  auto bias = DequantizedConstant(r, other);
  if (bias && static_cast<int64_t>(bias->size()) == columns) {
    *last = *add;
    return bias;
  }
  return std::nullopt;
}

bool MakeFloatResult(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  const Node node = r.node(n);
  if (node.outputs.size() != 1) return false;
  auto product = ByteProductOf(r, node);
  if (!product || product->k > 32768) return false;  // sums fit 32 bits
  std::optional<std::vector<double>> bias;
  size_t last = n;
  if (product->bias != kNoValue) {
    bias = DequantizedConstant(r, product->bias);
    if (!bias || static_cast<int64_t>(bias->size()) != product->n) return false;
  } else {
    bias = AddedTo(r, node.outputs[0], product->n, &last);
  }
  explain(node.Label() + " is an integer operator");
  const std::vector<float> scales(product->w.scales.begin(), product->w.scales.end());
  Node made{.op = "DynamicMatMul", .domain = std::string(kCelerDomain), .name = node.name, .opset = 1};
  made.inputs = {
      product->x.bytes,
      AddInt8Constant(r, node.name + ".weight", DType::kI8, {product->n, product->k}, product->w.values),
      r.AddFloats(node.name + ".scales", {product->n}, scales)};
  if (bias)
    made.inputs.push_back(r.AddFloats(node.name + ".bias", {product->n}, {bias->begin(), bias->end()}));
  made.attributes = {{"x_scale", static_cast<float>(product->x.q.scale)},
                     {"x_zero", int64_t{product->x.q.zero}}};
  made.outputs = r.node(last).outputs;
  r.node(last) = std::move(made);
  r.Recount();
  return true;
}

bool Fuse(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  const Node product = r.node(n);
  if (product.inputs.size() < 3) return false;
  const Constant* const w = r.ConstantOf(product.inputs[1]);
  Node* const dynamic = r.ProducedBy(product.inputs[0], "DynamicQuantizeLinear");
  if (!w || !dynamic || dynamic->outputs.size() != 3 || w->dtype != DType::kI8 || w->shape.rank() != 2 ||
      w->shape.elements() == 0 || dynamic->outputs[0] != product.inputs[0] ||
      dynamic->outputs[2] != product.inputs[2] ||
      !IsZero(r, product.inputs.size() > 3 ? product.inputs[3] : kNoValue))
    return false;
  const ValueId x = dynamic->inputs[0], bytes = dynamic->outputs[0], x_scale = dynamic->outputs[1],
                x_zero = dynamic->outputs[2];
  const bool shared = r.Readers(bytes) > 1;  // x becomes bytes once for all that read them
  const auto cast = OnlyReader(r, product.outputs[0], "Cast");
  if (!cast || r.node(*cast).Int("to", 0) != 1) return false;
  const ValueId reals = r.node(*cast).outputs[0];
  const auto scaled = OnlyReader(r, reals, "Mul");
  if (!scaled) return false;
  Node* const scales = r.ProducedBy(Other(r.node(*scaled), reals), "Mul");
  if (!scales || (scales->inputs[0] != x_scale && scales->inputs[1] != x_scale)) return false;
  const int64_t k = w->shape[0], columns = w->shape[1];
  const auto each = ScalesFor(r, Other(*scales, x_scale), columns);
  if (!each || k > 32768) return false;
  size_t last = *scaled;
  ValueId bias = kNoValue;
  if (const auto add = OnlyReader(r, r.node(last).outputs[0], "Add")) {
    const ValueId other = Other(r.node(*add), r.node(last).outputs[0]);
    const Constant* const term = r.ConstantOf(other);
    if (term && term->dtype == DType::kF32 && term->shape.rank() == 1 && term->shape[0] == columns) {
      bias = other;
      last = *add;
    }
  }
  explain(product.Label() + (shared ? " is an integer operator" : " quantizes its input dynamically"));
  std::vector<int8_t> by_column(static_cast<size_t>(k * columns));
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < columns; ++j)
      by_column[j * k + i] = static_cast<int8_t>(w->bytes[i * columns + j]);
  Node made{.op = "DynamicMatMul", .domain = std::string(kCelerDomain), .name = product.name, .opset = 1};
  made.inputs = {shared ? bytes : x,
                 AddInt8Constant(r, product.name + ".weight", DType::kI8, {columns, k}, by_column),
                 r.AddFloats(product.name + ".scales", {columns}, *each)};
  if (bias != kNoValue || shared) made.inputs.push_back(bias);
  if (shared) made.inputs.insert(made.inputs.end(), {kNoValue, x_scale, x_zero});
  made.outputs = r.node(last).outputs;
  r.node(last) = std::move(made);
  r.Recount();
  return true;
}

}  // namespace

int UseFloatResultProducts(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  if (!r.integers_anyway() && !IntegersAreFast()) return 0;
  for (size_t n = 0; n < r.nodes(); ++n)
    if (!r.removed(n) && (r.node(n).op == "Gemm" || r.node(n).op == "MatMul"))
      changes += MakeFloatResult(r, n, explain) ? 1 : 0;
  return changes;
}

int UseDynamicProducts(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  if (!r.integers_anyway() && !IntegersAreFast()) return 0;
  for (size_t n = 0; n < r.nodes(); ++n)
    if (!r.removed(n) && r.node(n).op == "MatMulInteger" && r.node(n).domain.empty())
      changes += Fuse(r, n, explain) ? 1 : 0;
  return changes;
}

}  // namespace celer::graph
