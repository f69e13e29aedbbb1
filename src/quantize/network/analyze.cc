#include "quantize/network/analyze.h"

#include <algorithm>
#include <cmath>

namespace celer::ptq {
namespace {

using graph::Data;
using graph::Node;

constexpr size_t kKept = 1 << 16;  // elements of a value that are compared; more are spread over it

// Evenly spread elements of a tensor.
std::vector<float> Sampled(std::span<const float> values) {
  if (values.size() <= kKept) return {values.begin(), values.end()};
  std::vector<float> out;
  out.reserve(kKept);
  for (size_t i = 0; i < kKept; ++i) out.push_back(values[i * values.size() / kKept]);
  return out;
}

int64_t LastDim(const Data& data) {
  const Shape& shape = data.tensor.shape;
  return shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
}

// Rows of scores of which the largest counts.
void CountRows(std::span<const float> exact, std::span<const float> rounded, int64_t columns,
               Scores* scores) {
  if (columns < 2 || exact.size() != rounded.size()) return;
  const auto step = static_cast<size_t>(columns);
  for (size_t i = 0; i + step <= exact.size(); i += step) {
    const auto a = std::max_element(exact.begin() + static_cast<ptrdiff_t>(i),
                                    exact.begin() + static_cast<ptrdiff_t>(i + step)),
               b = std::max_element(rounded.begin() + static_cast<ptrdiff_t>(i),
                                    rounded.begin() + static_cast<ptrdiff_t>(i + step));
    ++scores->rows;
    scores->same += a - exact.begin() == b - rounded.begin() ? 1 : 0;
  }
}

int64_t Largest(std::span<const float> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

Status CheckFinite(std::span<const float> values, const std::string& what) {
  for (const float x : values)
    if (!std::isfinite(x)) return Error::Invalid(what, ": an output of the network is not finite");
  return {};
}

}  // namespace

void Noise::Add(std::span<const float> exact, std::span<const float> values) {
  for (size_t i = 0; i < std::min(exact.size(), values.size()); ++i) {
    const double a = double{exact[i]}, b = double{values[i]};
    signal += a * a;
    rounded += b * b;
    dot += a * b;
    noise += (a - b) * (a - b);
  }
  count += static_cast<double>(std::min(exact.size(), values.size()));
}
double Noise::nsr() const {
  return noise == 0 ? 0 : signal == 0 ? 1 : noise / signal;
}
double Noise::snr_db() const {
  return -10 * std::log10(std::max(nsr(), 1e-20));
}
double Noise::cosine() const {
  return noise == 0 ? 1 : signal == 0 || rounded == 0 ? 0 : dot / std::sqrt(signal * rounded);
}
double Noise::mse() const {
  return count == 0 ? 0 : noise / count;
}

double Scores::nsr() const {
  double most = 0;
  for (const Noise& output : outputs) most = std::max(most, output.nsr());
  return most;
}
double Scores::disagreement() const {
  return rows == 0 ? 0 : 100 * (1 - static_cast<double>(same) / static_cast<double>(rows));
}

Result<Reference> Reference::Make(const graph::Network& network, Samples samples) {
  Reference out;
  CELER_ASSIGN(Runner runner, Runner::Make(network, true));
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const auto sample, samples.get(s));
    const auto ran = runner.Run(sample);
    if (!ran) return ran.error().WithContext(samples.name(s));
    auto& kept = out.outputs_.emplace_back();
    for (const Data& data : *ran) {
      const auto values = FloatsIn(&data);
      CELER_RETURN_IF_ERROR(CheckFinite(values, samples.name(s)));
      kept.emplace_back(values.begin(), values.end());
    }
    out.columns_.push_back(ran->empty() ? 0 : LastDim((*ran)[0]));
  }
  out.samples_ = std::move(samples);
  return out;
}

Result<Scores> Reference::Compare(graph::Network rounded) const {
  CELER_ASSIGN(Runner runner, Runner::Make(std::move(rounded), true));
  Scores scores;
  for (int64_t s = 0; s < samples_.count; ++s) {
    CELER_ASSIGN(const auto sample, samples_.get(s));
    CELER_ASSIGN(const auto ran, runner.Run(sample));
    const auto& exact = outputs_[s];
    scores.outputs.resize(exact.size());
    for (size_t i = 0; i < exact.size(); ++i) scores.outputs[i].Add(exact[i], FloatsIn(&ran[i]));
    if (!exact.empty()) CountRows(exact[0], FloatsIn(&ran[0]), columns_[s], &scores);
  }
  return scores;
}

Result<Scores> Evaluate(const graph::Network& exact, graph::Network rounded, const Samples& samples,
                        const Truth& truth, const Progress& progress) {
  CELER_ASSIGN(Runner reals, Runner::Make(exact, true));
  CELER_ASSIGN(Runner integers, Runner::Make(std::move(rounded), true));
  Scores scores;
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const auto sample, samples.get(s));
    const auto a = reals.Run(sample);
    if (!a) return a.error().WithContext(samples.name(s));
    const auto b = integers.Run(sample);
    if (!b) return b.error().WithContext(samples.name(s));
    scores.outputs.resize(a->size());
    for (size_t i = 0; i < a->size(); ++i) {
      CELER_RETURN_IF_ERROR(CheckFinite(FloatsIn(&(*a)[i]), samples.name(s)));
      scores.outputs[i].Add(FloatsIn(&(*a)[i]), FloatsIn(&(*b)[i]));
    }
    if (!a->empty()) {
      const auto x = FloatsIn(&(*a)[0]), y = FloatsIn(&(*b)[0]);
      CountRows(x, y, LastDim((*a)[0]), &scores);
      if (const auto right = truth ? truth(s) : std::nullopt; right && !x.empty() && !y.empty()) {
        ++scores.labelled;
        scores.right_exact += Largest(x) == *right ? 1 : 0;
        scores.right += Largest(y) == *right ? 1 : 0;
      }
    }
    if (progress) CELER_RETURN_IF_ERROR(progress("evaluating", s + 1, samples.count));
  }
  return scores;
}

Result<std::vector<LayerError>> Graphwise(const NetworkQuantizer& quantizer, const QuantizerPlan& plan,
                                          const Inserted& inserted, const Samples& samples,
                                          const Progress& progress) {
  const graph::Graph& graph = quantizer.network().graph;
  std::vector<LayerError> out;
  std::map<ValueId, size_t> exact_at, rounded_at;  // values whose layers these are
  for (const Layer& layer : plan.layers) {
    if (layer.kind == Layer::Kind::kPassive) continue;
    const ValueId value = layer.outputs[0];
    const auto seen = inserted.rounded.find(value);
    exact_at[value] = out.size();
    rounded_at[layer.quantize_output ? seen->second : value] = out.size();
    out.push_back({.name = layer.name, .op = graph.nodes[layer.node].op});
  }
  CELER_ASSIGN(Runner reals, Runner::Make(quantizer.network(), false));
  CELER_ASSIGN(Runner integers, Runner::Make(inserted.network, false));
  std::vector<std::vector<float>> kept(out.size());
  reals.session().Observe([&](const Node& node, const std::vector<const Data*>& outputs, double) {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (const auto at = exact_at.find(node.outputs[i]); outputs[i] && at != exact_at.end())
        kept[at->second] = Sampled(FloatsIn(outputs[i]));
  });
  integers.session().Observe([&](const Node& node, const std::vector<const Data*>& outputs, double) {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (const auto at = rounded_at.find(node.outputs[i]); outputs[i] && at != rounded_at.end())
        out[at->second].graphwise.Add(kept[at->second], Sampled(FloatsIn(outputs[i])));
  });
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const auto sample, samples.get(s));
    if (const auto ran = reals.Run(sample); !ran) return ran.error().WithContext(samples.name(s));
    if (const auto ran = integers.Run(sample); !ran) return ran.error().WithContext(samples.name(s));
    if (progress) CELER_RETURN_IF_ERROR(progress("comparing layers", s + 1, samples.count));
  }
  return out;
}

Status Layerwise(const NetworkQuantizer& quantizer, const Reference& reference,
                 std::vector<LayerError>* layers, const Progress& progress) {
  for (size_t i = 0; i < layers->size(); ++i) {
    const QuantizerPlan plan = quantizer.PlanOnly((*layers)[i].name);
    CELER_ASSIGN(Inserted inserted, quantizer.Build(plan));
    CELER_ASSIGN(const Scores scores, reference.Compare(std::move(inserted.network)));
    (*layers)[i].layerwise = scores.nsr();
    if (progress)
      CELER_RETURN_IF_ERROR(progress("rounding each layer alone", static_cast<int64_t>(i) + 1,
                                     static_cast<int64_t>(layers->size())));
  }
  return {};
}

}  // namespace celer::ptq
