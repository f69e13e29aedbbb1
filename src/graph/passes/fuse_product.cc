// Epilogue fusion: a product with constant weights adds its bias and a residual, and applies an activation,
// while its accumulators are in registers.
#include "graph/ops/fast/fast.h"
#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

// An integer product with a float result, dynamically or statically quantized.
bool IsDynamic(const Node& node) {
  return node.domain == kCelerDomain && node.op == "DynamicMatMul";
}

// A product with a constant matrix and a single reader, without an activation yet.
Node* ProductFor(Rewriter& r, ValueId value) {
  const int maker = r.ProducerOf(value);
  if (maker < 0 || r.Readers(value) != 1) return nullptr;
  Node& node = r.node(static_cast<size_t>(maker));
  const bool fits = IsConstantProduct(r, node) || (IsDynamic(node) && r.ConstantOf(node.inputs[1]));
  return fits && node.Text("activation", "").empty() ? &node : nullptr;
}

// Where a product has its bias; what is added to it comes behind.
size_t BiasPlace(const Node& product) {
  return IsDynamic(product) ? 3 : 2;
}
bool Has(const Node& product, size_t place) {
  return place < product.inputs.size() && product.inputs[place] != kNoValue;
}

// One number per column: [n], or [1, ..., n].
bool IsBias(Rewriter& r, const Node& product, ValueId value) {
  const Constant *const bias = r.ConstantOf(value), *const weights = r.ConstantOf(product.inputs[1]);
  const int64_t n = weights->shape[IsDynamic(product) || product.Int("transB", 0) != 0 ? 0 : 1];
  return bias && bias->dtype == DType::kF32 && bias->shape.rank() == 1 && bias->shape[0] == n;
}

bool FuseAdd(Rewriter& r, size_t n, const std::function<void(std::string)>& explain) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const ValueId x = r.node(n).inputs[i], other = r.node(n).inputs[1 - i];
    Node* const product = ProductFor(r, x);
    if (!product || other == x) continue;
    const size_t place = BiasPlace(*product);
    if (Has(*product, place + 1)) continue;  // what comes behind a residual is not a bias
    const bool bias = !Has(*product, place) && IsBias(r, *product, other);
    if (!bias && !r.LikelySameShape(x, other)) continue;
    explain(r.node(n).Label() + " is fused into " + product->Label());
    if (!IsDynamic(*product)) MakeProduct(*product);
    const size_t at = bias ? place : place + 1;
    if (product->inputs.size() <= at) product->inputs.resize(at + 1, kNoValue);
    product->inputs[at] = other;
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
    explain(r.node(n).Label() + " is fused into " + product->Label());
    if (!IsDynamic(*product)) MakeProduct(*product);
    SetActivation(*product, *activation);
    TakeOver(r, *product, r.node(n));
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
