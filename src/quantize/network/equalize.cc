#include "quantize/network/equalize.h"

#include <algorithm>
#include <cmath>

#include "graph/passes/fusing.h"
#include "graph/passes/pass.h"
#include "quantize/network/plan.h"

namespace celer::ptq {
namespace {

using graph::Graph;
using graph::Node;

constexpr int kMostRounds = 40;
constexpr double kStill = 1e-3;     // scales that change nothing worth mentioning
constexpr double kMostScale = 1e4;  // in one round

struct Weights {
  std::vector<float> numbers, bias;
  Shape shape;
  int64_t groups = 1;
  bool changed = false;

  // Calls fn(input channel, output channel, weight).
  template <class Fn>
  void ForEach(const Fn& fn) {
    const int64_t inner = *shape.elements() / (shape[0] * shape[1]), rows = shape[0] / groups;
    for (int64_t i = 0; i < *shape.elements(); ++i) {
      const int64_t output = i / (shape[1] * inner), column = i / inner % shape[1];
      fn(output / rows * shape[1] + column, output, numbers[static_cast<size_t>(i)]);
    }
  }
  int64_t inputs() const { return shape[1] * groups; }
  int64_t outputs() const { return shape[0]; }
};

struct Pair {
  size_t first, second;  // nodes
  int cut = -1;          // the Relu or Clip between them
};

class Equalizer {
 public:
  explicit Equalizer(graph::Network* network) : graph_(network->graph), facts_(FactsOf(network->graph)) {}

  Result<EqualizeReport> Run() {
    FindPairs();
    for (int round = 0; round < kMostRounds; ++round) {
      double most = 0;
      for (const Pair& pair : pairs_) most = std::max(most, Balance(pair));
      if (most < kStill) break;
    }
    for (auto& [node, weights] : weights_)
      if (weights.changed) Store(node, weights);
    for (const Pair& pair : pairs_) Unclip(pair);
    report_.pairs = static_cast<int>(pairs_.size());
    CELER_RETURN_IF_ERROR(graph::Verify(graph_));
    return report_;
  }

 private:
  bool IsConv(size_t n) const {
    const Node& node = graph_.nodes[n];
    return node.op == "Conv" && ProductOf(graph_, node).has_value();
  }
  int OnlyReader(ValueId id) const {
    const auto v = static_cast<size_t>(id);
    return facts_.readers[v].size() == 1 && !facts_.kept[v] ? static_cast<int>(facts_.readers[v][0]) : -1;
  }

  void FindPairs() {
    graph::Rewriter rewriter(&graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!IsConv(n)) continue;
      Pair pair{n, 0};
      int next = OnlyReader(graph_.nodes[n].outputs[0]);
      if (next >= 0) {
        const Node& between = graph_.nodes[static_cast<size_t>(next)];
        const auto cut = graph::ActivationOf(rewriter, between);
        if (cut && cut->name == "clip" && cut->a == 0 && cut->b > 0) {
          pair.cut = next;
          next = OnlyReader(between.outputs[0]);
        }
      }
      if (next < 0 || !IsConv(static_cast<size_t>(next))) continue;
      pair.second = static_cast<size_t>(next);
      const ValueId given = graph_.nodes[pair.cut >= 0 ? static_cast<size_t>(pair.cut) : n].outputs[0];
      if (graph_.nodes[pair.second].inputs[0] != given) continue;
      if (Of(pair.first).outputs() != Of(pair.second).inputs()) continue;
      pairs_.push_back(pair);
    }
  }

  Weights& Of(size_t n) {
    const auto [at, fresh] = weights_.try_emplace(n);
    if (fresh) {
      const Product product = *ProductOf(graph_, graph_.nodes[n]);
      at->second.numbers = graph::FloatsOf(*graph_.value(product.weight).constant);
      at->second.shape = graph_.value(product.weight).constant->shape;
      at->second.groups = product.groups;
      if (product.bias != kNoValue) at->second.bias = graph::FloatsOf(*graph_.value(product.bias).constant);
    }
    return at->second;
  }

  // Returns the largest change as a ratio.
  double Balance(const Pair& pair) {
    Weights &first = Of(pair.first), &second = Of(pair.second);
    const auto channels = static_cast<size_t>(first.outputs());
    std::vector<float> rows(channels, 0.0f), columns(channels, 0.0f);
    first.ForEach([&](int64_t, int64_t output, float w) {
      float& top = rows[static_cast<size_t>(output)];
      top = std::max(top, std::abs(w));
    });
    second.ForEach([&](int64_t input, int64_t, float w) {
      float& top = columns[static_cast<size_t>(input)];
      top = std::max(top, std::abs(w));
    });
    std::vector<float> scale(channels, 1.0f);
    double most = 0;
    for (size_t c = 0; c < channels; ++c) {
      if (!(rows[c] > 0) || !(columns[c] > 0)) continue;
      const double s =
          std::clamp(std::sqrt(double{rows[c]} / double{columns[c]}), 1 / kMostScale, kMostScale);
      scale[c] = static_cast<float>(s);
      most = std::max(most, std::abs(std::log(s)));
    }
    if (most < kStill) return most;
    first.ForEach([&](int64_t, int64_t output, float& w) { w /= scale[static_cast<size_t>(output)]; });
    for (size_t c = 0; c < first.bias.size(); ++c) first.bias[c] /= scale[c];
    second.ForEach([&](int64_t input, int64_t, float& w) { w *= scale[static_cast<size_t>(input)]; });
    first.changed = second.changed = true;
    return most;
  }

  void Store(size_t n, const Weights& weights) {
    const auto put = [&](size_t input, const Shape& shape, const std::vector<float>& numbers) {
      auto copy = std::make_shared<std::vector<float>>(numbers);
      const auto bytes = std::as_bytes(std::span<const float>(*copy));
      const std::string name = graph_.value(graph_.nodes[n].inputs[input]).name;
      graph_.nodes[n].inputs[input] =
          graph_.AddConstant(name + "_equalized", {DType::kF32, shape, bytes, std::move(copy)});
    };
    put(1, weights.shape, weights.numbers);
    if (!weights.bias.empty()) put(2, Shape{static_cast<int64_t>(weights.bias.size())}, weights.bias);
  }

  void Unclip(const Pair& pair) {
    if (pair.cut < 0) return;
    Node& node = graph_.nodes[static_cast<size_t>(pair.cut)];
    if (node.op != "Clip") return;
    report_.unclipped.push_back(facts_.names[static_cast<size_t>(pair.cut)]);
    node.op = "Relu";
    node.inputs.resize(1);
    node.attributes.clear();
  }

  Graph& graph_;
  ValueFacts facts_;
  std::vector<Pair> pairs_;
  std::map<size_t, Weights> weights_;
  EqualizeReport report_;
};

}  // namespace

Result<EqualizeReport> Equalize(graph::Network* network) {
  return Equalizer(network).Run();
}

}  // namespace celer::ptq
