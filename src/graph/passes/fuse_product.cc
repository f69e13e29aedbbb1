// A product with constant weights adds its bias and a residual, and applies a function, while its sums are
// still in registers.
#include "graph/ops/fast.h"
#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

// A product with a constant f32 matrix, whose result nobody else reads, without a function yet.
Node* ProductFor(Rewriter& r, ValueId value) {
  const int maker = r.MakerOf(value);
  if (maker < 0 || r.Readers(value) != 1) return nullptr;
  Node& node = r.node(static_cast<size_t>(maker));
  return IsConstantProduct(r, node) && node.Text("activation", "").empty() ? &node : nullptr;
}

// One number per column: [n], or [1, ..., n].
bool IsBias(Rewriter& r, const Node& product, ValueId value) {
  const Constant *const bias = r.ConstantOf(value), *const weights = r.ConstantOf(product.inputs[1]);
  const int64_t n = weights->shape[product.Int("transB", 0) != 0 ? 0 : 1];
  return bias && bias->dtype == DType::kF32 && bias->shape.rank() == 1 && bias->shape[0] == n;
}

bool FuseAdd(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const ValueId x = r.node(n).inputs[i], other = r.node(n).inputs[1 - i];
    Node* const product = ProductFor(r, x);
    if (!product || other == x) continue;
    const bool has_bias = product->inputs.size() > 2 && product->inputs[2] != kNoValue;
    const bool bias = !has_bias && product->inputs.size() < 4 && IsBias(r, *product, other);
    const bool residual = !bias && product->inputs.size() < 4 && r.LikelySameShape(x, other);
    if (!bias && !residual) continue;
    explain(r.node(n).Label() + " is added by " + product->Label());
    MakeProduct(*product);
    product->inputs.resize(bias ? 3 : 4, kNoValue);
    product->inputs[bias ? 2 : 3] = other;
    TakeOver(r, *product, r.node(n));
    return true;
  }
  return false;
}

}  // namespace

Result<int> FuseProduct(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).inputs.empty()) continue;
    if (r.node(n).op == "Add" && r.node(n).domain.empty()) {
      changes += FuseAdd(r, n, explain) ? 1 : 0;
      continue;
    }
    const auto activation = ActivationOf(r, r.node(n));
    Node* const product = activation ? ProductFor(r, r.node(n).inputs[0]) : nullptr;
    if (!product) continue;
    explain(r.node(n).Label() + " is done by " + product->Label());
    MakeProduct(*product);
    SetActivation(*product, *activation);
    TakeOver(r, *product, r.node(n));
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
