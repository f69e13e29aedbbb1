// softmax(q k * scale + mask) v, which exporters decompose into up to six nodes. Fused, its scores stay in
// cache.
#include "graph/ops/fast/fast.h"
#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

// Takes a factor off `value`, if nobody else reads the product.
ValueId WithoutFactor(Rewriter& r, ValueId value, double& scale) {
  if (Node* const div = r.SingleUseProducer(value, "Div"))
    if (const auto by = r.Scalar(div->inputs[1]); by && *by != 0) {
      scale /= *by;
      return div->inputs[0];
    }
  if (Node* const mul = r.SingleUseProducer(value, "Mul"))
    for (const size_t i : {size_t{0}, size_t{1}})
      if (const auto by = r.Scalar(mul->inputs[i])) {
        scale *= *by;
        return mul->inputs[1 - i];
      }
  return value;
}

bool IsOverLast(Rewriter& r, const Node& softmax) {
  const int64_t axis = softmax.Int("axis", softmax.opset < 13 ? 1 : -1);
  const auto rank = r.RankOf(softmax.inputs[0]);
  return axis == -1 || (rank && axis == *rank - 1);
}

// Dimensions of three products with as many matrices each.
bool Fits(const Shape& q, const Shape& k, const Shape& v) {
  const int rank = q.rank();
  if (rank < 2 || rank > 4 || k.rank() != rank || v.rank() != rank) return false;
  for (int i = 0; i < rank - 2; ++i)
    if (q[i] != k[i] || q[i] != v[i]) return false;
  return true;
}

struct Parts {
  ValueId q = kNoValue, k = kNoValue, mask = kNoValue;
  double scale = 1;
};
std::optional<Parts> ScoresOf(Rewriter& r, ValueId value) {
  Parts parts;
  if (Node* const add = r.SingleUseProducer(value, "Add")) {
    const auto scores = r.SampleOf(value);
    for (const size_t i : {size_t{0}, size_t{1}}) {
      double scale = 1;
      const ValueId inner = WithoutFactor(r, add->inputs[i], scale);
      if (!r.SingleUseProducer(inner, "MatMul")) continue;
      // The mask does not make the scores larger.
      const auto before = r.SampleOf(add->inputs[i]);
      if (!scores || !before || !(*scores == *before)) return std::nullopt;
      parts.mask = add->inputs[1 - i];
      value = add->inputs[i];
      break;
    }
    if (parts.mask == kNoValue) return std::nullopt;
  }
  value = WithoutFactor(r, value, parts.scale);
  Node* const product = r.SingleUseProducer(value, "MatMul");
  if (!product) return std::nullopt;
  parts.q = WithoutFactor(r, product->inputs[0], parts.scale);
  parts.k = WithoutFactor(r, product->inputs[1], parts.scale);
  return parts;
}

bool IsF32(Rewriter& r, const Parts& parts) {
  return r.TypeOf(parts.q) == DType::kF32 && (parts.mask == kNoValue || r.TypeOf(parts.mask) == DType::kF32);
}

}  // namespace

Result<int> RecoverAttention(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "MatMul" || !r.node(n).domain.empty()) continue;
    Node* const softmax = r.SingleUseProducer(r.node(n).inputs[0], "Softmax");
    if (!softmax || !IsOverLast(r, *softmax)) continue;
    const auto parts = ScoresOf(r, softmax->inputs[0]);
    if (!parts || !IsF32(r, *parts)) continue;
    const ValueId v = r.node(n).inputs[1];
    const auto q_shape = r.SampleOf(parts->q), k_shape = r.SampleOf(parts->k), v_shape = r.SampleOf(v);
    if (!q_shape || !k_shape || !v_shape || !Fits(*q_shape, *k_shape, *v_shape)) continue;
    Node& node = r.node(n);
    explain(node.Label() + " ends an attention");
    node.op = "Attention";
    MakeFused(node);
    node.inputs = {parts->q, parts->k, v};
    if (parts->mask != kNoValue) node.inputs.push_back(parts->mask);
    node.attributes = {{"scale", static_cast<float>(parts->scale)}};
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
