#include "quantize/network/islands.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "graph/passes/pass.h"

namespace celer::ptq {
namespace {

using graph::Graph;
using graph::Node;

std::optional<double> ElementsOf(const graph::SampleShapes& shapes, ValueId id) {
  const auto v = static_cast<size_t>(id);
  if (v >= shapes.of.size() || !shapes.of[v]) return std::nullopt;
  const auto elements = shapes.of[v]->elements();
  return elements ? std::optional(static_cast<double>(*elements)) : std::nullopt;
}

bool FitsWinograd(const Node& node, const Product& product, const graph::Constant& weight) {
  if (node.op != "Conv" || product.groups != 1 || weight.shape.rank() != 4 || weight.shape[2] != 3 ||
      weight.shape[3] != 3)
    return false;
  for (const char* const name : {"strides", "dilations"})
    for (const int64_t step : node.Ints(name))
      if (step != 1) return false;
  return true;
}

// Multiply-adds of a product that floats would need: each weight meets every place of the output, or of the
// input where that is what windows step over.
std::optional<double> ProductsOf(const Graph& graph, const graph::SampleShapes& shapes, const Node& node) {
  const auto product = MatchProduct(graph, node);
  if (!product || product->outputs < 1) return std::nullopt;
  const graph::Constant& weight = *graph.value(product->weight).constant;
  const auto weights = weight.shape.elements();
  const bool transposed = node.op == "ConvTranspose";
  const auto elements = ElementsOf(shapes, transposed ? node.inputs[0] : node.outputs[0]);
  const auto channels = static_cast<double>(transposed ? weight.shape[0] : product->outputs);
  if (!weights || !elements || channels < 1) return std::nullopt;
  const double all = static_cast<double>(*weights) * (*elements / channels);
  return FitsWinograd(node, *product, weight) ? all / kWinogradSaves : all;
}

struct IslandSums {
  double products = 0, converted = 0;
  std::vector<const Layer*> layers = {};  // its products
  bool known = true;
};

// Layers that share a quantized value are one island.
class IslandFinder {
 public:
  IslandFinder(const Graph& graph, const QuantizerPlan& plan)
      : graph_(graph), plan_(plan), shapes_(graph::SampleShapesOf(graph)), parent_(plan.layers.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    const std::set<ValueId> quantized(plan.values.begin(), plan.values.end());
    std::map<ValueId, size_t> first;
    const auto touch = [&](ValueId id, size_t layer) {
      if (!quantized.contains(id)) return;
      const auto [at, fresh] = first.emplace(id, layer);
      if (!fresh) parent_[Find(layer)] = Find(at->second);
    };
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      const Layer& layer = plan.layers[i];
      for (const size_t input : layer.data) touch(graph.nodes[layer.node].inputs[input], i);
      for (const ValueId out : layer.outputs) touch(out, i);
    }
  }

  std::map<size_t, IslandSums> Islands() {
    std::map<size_t, IslandSums> out;
    std::map<ValueId, size_t> touched;  // a value of the plan, and an island that it is of
    std::set<size_t> inside;            // nodes that integer kernels do
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      const Layer& layer = plan_.layers[i];
      inside.insert(layer.node);
      inside.insert(layer.followers.begin(), layer.followers.end());
      IslandSums& island = out[Find(i)];
      for (const size_t input : layer.data) touched[graph_.nodes[layer.node].inputs[input]] = Find(i);
      for (const ValueId made : layer.outputs) touched[made] = Find(i);
      if (layer.kind != Layer::Kind::kProduct) continue;
      island.layers.push_back(&layer);
      const auto products = ProductsOf(graph_, shapes_, graph_.nodes[layer.node]);
      island.known &= products.has_value();
      island.products += products.value_or(0);
    }
    for (const auto& [value, of] : touched) {
      if (!Crosses(value, inside)) continue;
      IslandSums& island = out[of];
      const auto elements = ElementsOf(shapes_, value);
      island.known &= elements.has_value();
      island.converted += elements.value_or(0);
    }
    return out;
  }

 private:
  size_t Find(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

  // A float operator makes or reads it, or it is an input or an output of the network.
  bool Crosses(ValueId value, const std::set<size_t>& inside) const {
    if (!plan_.made.contains(value)) return true;
    for (const ValueId out : graph_.outputs)
      if (out == value) return true;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (inside.contains(n)) continue;
      for (const ValueId read : graph_.Reads(graph_.nodes[n]))
        if (read == value) return true;
    }
    return false;
  }

  const Graph& graph_;
  const QuantizerPlan& plan_;
  const graph::SampleShapes shapes_;
  std::vector<size_t> parent_;
};

}  // namespace

FloatLayers FindIslands(const Graph& graph, const QuantizerPlan& plan) {
  FloatLayers out;
  for (const auto& [root, island] : IslandFinder(graph, plan).Islands()) {
    if (!island.known || island.layers.empty() || island.converted <= 0) continue;
    const double ratio = island.products / island.converted;
    if (ratio >= kProductsPerConversion) continue;
    for (const Layer* layer : island.layers)
      out[layer->name] = fmt::format(
          "between float operators, {:.0f} multiply-adds per converted value, and from {:.0f} on "
          "integers pay",
          ratio, kProductsPerConversion);
  }
  return out;
}

}  // namespace celer::ptq
