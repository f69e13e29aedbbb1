#include "quantize/network/functions.h"

#include <algorithm>
#include <string_view>

namespace celer::ptq {
namespace {

using graph::Graph;
using graph::Node;

constexpr std::string_view kParts[] = {"Add",  "Clip",        "Div",       "Elu",   "Erf",
                                       "Gelu", "HardSigmoid", "HardSwish", "Mul",   "LeakyRelu",
                                       "Relu", "Sigmoid",     "Sub",       "Swish", "Tanh"};
constexpr size_t kMostNodes = 16;  // of a table

bool IsConstant(const Graph& graph, ValueId id) {
  return graph.value(id).constant.has_value();
}

// An operator on one or two reals and single numbers.
bool IsPart(const Graph& graph, const ValueFacts& facts, const Node& node) {
  if (!node.domain.empty() || node.outputs.size() != 1 ||
      std::find(std::begin(kParts), std::end(kParts), node.op) == std::end(kParts))
    return false;
  bool reads = false;
  for (const ValueId id : node.inputs) {
    if (id == kNoValue) continue;
    if (!facts.is_float[id]) return false;
    const auto& constant = graph.value(id).constant;
    if (constant && (constant->shape.elements() != 1 || constant->shape.rank() > 1)) return false;
    reads |= !constant;
  }
  return reads && facts.is_float[node.outputs[0]];
}

// The bias and activation of a product are fused into its kernel.
bool BelongsToProduct(const Graph& graph, const ValueFacts& facts, const Node& node) {
  for (const ValueId id : node.inputs) {
    if (id == kNoValue || IsConstant(graph, id)) continue;
    const int maker = facts.maker[id];
    if (maker < 0 || facts.readers[id].size() != 1 || facts.kept[id]) continue;
    const Node& made = graph.nodes[maker];
    if (MatchProduct(graph, made) && (node.op == "Relu" || node.op == "Clip")) return true;
  }
  return false;
}

class Finder {
 public:
  Finder(const Graph& graph, const ValueFacts& facts)
      : graph_(graph), facts_(facts), taken_(graph.nodes.size(), false) {}

  std::vector<Function> All() {
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      if (taken_[n] || !Fits(n)) continue;
      Function found = EndingAt(n);
      if (found.nodes.size() < 2) continue;
      for (const size_t node : found.nodes) taken_[node] = true;
      out_.push_back(std::move(found));
    }
    return std::move(out_);
  }

 private:
  bool Fits(size_t n) const {
    const Node& node = graph_.nodes[n];
    return !taken_[n] && IsPart(graph_, facts_, node) && !BelongsToProduct(graph_, facts_, node);
  }

  // What is read by the function alone is inside, maker by maker; nothing if that leaves two values.
  Function EndingAt(size_t last) const {
    std::vector<size_t> inside = {last};
    bool grows = true;
    while (grows && inside.size() < kMostNodes) {
      grows = false;
      for (const size_t n : std::vector<size_t>(inside))
        for (const ValueId id : graph_.nodes[n].inputs) {
          const int maker = id == kNoValue ? -1 : facts_.maker[id];
          if (maker < 0 || facts_.kept[id] || !Fits(static_cast<size_t>(maker))) continue;
          const auto at = static_cast<size_t>(maker);
          const auto has = [&](size_t node) {
            return std::find(inside.begin(), inside.end(), node) != inside.end();
          };
          const auto& readers = facts_.readers[id];
          if (has(at) || !std::all_of(readers.begin(), readers.end(), has)) continue;
          inside.push_back(at);
          grows = true;
        }
    }
    std::sort(inside.begin(), inside.end());
    Function out{.from = kNoValue, .nodes = std::move(inside)};
    for (const size_t n : out.nodes)
      for (const ValueId id : graph_.nodes[n].inputs) {
        if (id == kNoValue || IsConstant(graph_, id)) continue;
        const int maker = facts_.maker[id];
        if (maker >= 0 && std::binary_search(out.nodes.begin(), out.nodes.end(), static_cast<size_t>(maker)))
          continue;
        if (out.from != kNoValue && out.from != id) return {};
        out.from = id;
      }
    return out;
  }

  const Graph& graph_;
  const ValueFacts& facts_;
  std::vector<bool> taken_;
  std::vector<Function> out_;
};

}  // namespace

std::vector<Function> FunctionsIn(const Graph& graph, const ValueFacts& facts) {
  return Finder(graph, facts).All();
}

}  // namespace celer::ptq
