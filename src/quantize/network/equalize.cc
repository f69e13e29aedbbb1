#include "quantize/network/equalize.h"

#include <algorithm>
#include <cmath>

#include "graph/passes/fusing.h"
#include "graph/passes/pass.h"
#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {
namespace {

using graph::Graph;
using graph::Node;

constexpr int kMostRounds = 40;
constexpr double kStill = 1e-3;     // scales that change nothing worth mentioning
constexpr double kMostScale = 1e4;  // in one round
constexpr double kHeld = -1;        // instead of a least scale: this channel stays

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
      fn(output / rows * shape[1] + column, output, numbers[i]);
    }
  }
  int64_t inputs() const { return shape[1] * groups; }
  int64_t outputs() const { return shape[0]; }
};

struct Pair {
  size_t first, second;                        // nodes
  int cut = -1;                                // the Relu or Clip between them
  double bound = 0;                            // of a Clip; 0: none
  std::vector<double> least = {}, total = {};  // of each channel: the smallest scale, and that so far
};

class Equalizer {
 public:
  explicit Equalizer(graph::Network* network)
      : graph_(network->graph), facts_(FindValueFacts(network->graph)) {
    FindPairs();
  }

  std::vector<size_t> Clips() const {
    std::vector<size_t> out;
    for (const Pair& pair : pairs_)
      if (pair.bound > 0) out.push_back(static_cast<size_t>(pair.cut));
    return out;
  }

  Result<EqualizeReport> Run(const ChannelPeaks& peaks) {
    for (Pair& pair : pairs_) Limit(pair, peaks);
    for (int round = 0; round < kMostRounds; ++round) {
      double most = 0;
      for (Pair& pair : pairs_) most = std::max(most, Balance(pair));
      if (most < kStill) break;
    }
    for (auto& [node, weights] : weights_)
      if (weights.changed) Store(node, weights);
    report_.pairs = static_cast<int>(pairs_.size());
    CELER_RETURN_IF_ERROR(graph::Verify(graph_));
    return report_;
  }

 private:
  bool IsConv(size_t n) const {
    const Node& node = graph_.nodes[n];
    return node.op == "Conv" && MatchProduct(graph_, node).has_value();
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
        const Node& between = graph_.nodes[next];
        const auto cut = graph::ActivationOf(rewriter, between);
        if (cut && cut->name == "clip" && cut->a == 0 && cut->b > 0) {
          pair.cut = next;
          pair.bound = std::isfinite(cut->b) ? double{cut->b} : 0;
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
      const Product product = *MatchProduct(graph_, graph_.nodes[n]);
      at->second.numbers = graph::FloatsOf(*graph_.value(product.weight).constant);
      at->second.shape = graph_.value(product.weight).constant->shape;
      at->second.groups = product.groups;
      if (product.bias != kNoValue) at->second.bias = graph::FloatsOf(*graph_.value(product.bias).constant);
    }
    return at->second;
  }

  // A channel must stay below a bound that it does not reach; what reaches it cannot be scaled.
  void Limit(Pair& pair, const ChannelPeaks& peaks) {
    constexpr double kBelow = 0.97;  // of the bound: other inputs than the samples may be a little larger
    const auto channels = static_cast<size_t>(Of(pair.first).outputs());
    pair.total.assign(channels, 1.0);
    pair.least.assign(channels, 0.0);
    report_.channels += static_cast<int64_t>(channels);
    if (pair.bound == 0) return;
    const auto known = peaks.find(static_cast<size_t>(pair.cut));
    for (size_t c = 0; c < channels; ++c) {
      const bool given = known != peaks.end() && known->second.size() == channels;
      const double least = given ? double{known->second[c]} / (kBelow * pair.bound) : 1.0;
      pair.least[c] = least >= 1 ? kHeld : least;
      report_.held += least >= 1 ? 1 : 0;
    }
  }

  // Returns the largest change as a ratio.
  double Balance(Pair& pair) {
    Weights &first = Of(pair.first), &second = Of(pair.second);
    const auto channels = static_cast<size_t>(first.outputs());
    std::vector<float> rows(channels, 0.0f), columns(channels, 0.0f);
    first.ForEach([&](int64_t, int64_t output, float w) {
      float& top = rows[output];
      top = std::max(top, std::abs(w));
    });
    second.ForEach([&](int64_t input, int64_t, float w) {
      float& top = columns[input];
      top = std::max(top, std::abs(w));
    });
    std::vector<float> scale(channels, 1.0f);
    double most = 0;
    for (size_t c = 0; c < channels; ++c) {
      if (!(rows[c] > 0) || !(columns[c] > 0)) continue;
      if (pair.least[c] == kHeld) continue;
      double s = std::clamp(std::sqrt(double{rows[c]} / double{columns[c]}), 1 / kMostScale, kMostScale);
      s = std::max(s, pair.least[c] / pair.total[c]);
      scale[c] = static_cast<float>(s);
      most = std::max(most, std::abs(std::log(s)));
    }
    if (most < kStill) return most;
    for (size_t c = 0; c < channels; ++c) pair.total[c] *= double{scale[c]};
    first.ForEach([&](int64_t, int64_t output, float& w) { w /= scale[output]; });
    for (size_t c = 0; c < first.bias.size(); ++c) first.bias[c] /= scale[c];
    second.ForEach([&](int64_t input, int64_t, float& w) { w *= scale[input]; });
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

  Graph& graph_;
  ValueFacts facts_;
  std::vector<Pair> pairs_;
  std::map<size_t, Weights> weights_;
  EqualizeReport report_;
};

}  // namespace

Result<EqualizeReport> Equalize(graph::Network* network, const ChannelPeaks& peaks) {
  return Equalizer(network).Run(peaks);
}

std::vector<size_t> NodesWithPeaks(const graph::Network& network) {
  graph::Network copy = network;
  return Equalizer(&copy).Clips();
}

}  // namespace celer::ptq
