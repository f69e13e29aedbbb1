#include "quantize/llm/awq.h"

#include <algorithm>
#include <cmath>

#include "quantize/llm/fold.h"

namespace celer {
namespace {

constexpr int kSteps = 20;             // alphas that are tried
constexpr int64_t kSampledRows = 384;  // of each matrix: enough to compare alphas
constexpr int kSearchCandidates = 2;   // grids of a group while searching

// trace(D H D^T) with D = Q(W s) / s - W.
double ErrorOf(const AlignedVector<float>& w, int64_t rows, int64_t cols, const Target& target,
               std::span<const float> s, const AlignedVector<float>& h, ThreadPool& pool) {
  AlignedVector<float> scaled(w.size()), d(w.size()), dh(w.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) scaled[r * cols + c] = w[r * cols + c] * s[c];
  FakeQuantize(scaled.data(), rows, cols, target, nullptr, kSearchCandidates, d.data(), pool);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const auto at = static_cast<size_t>(r * cols + c);
      d[at] = d[at] / s[c] - w[at];
    }
  Product({.m = rows,
           .n = cols,
           .k = cols,
           .a = GemmOperand::Rows(d.data(), cols),
           .b = GemmOperand::Rows(h.data(), cols),
           .out = dh.data(),
           .out_stride = cols},
          pool);
  double sum = 0;
  for (size_t i = 0; i < d.size(); ++i) sum += static_cast<double>(d[i]) * dh[i];
  return sum;
}

std::vector<float> ScalesFor(const std::vector<float>& magnitudes, float alpha) {
  const float most = *std::max_element(magnitudes.begin(), magnitudes.end());
  std::vector<float> s;
  for (const float m : magnitudes) s.push_back(std::pow(std::max(m, 1e-4f * most), alpha));
  const auto [low, high] = std::minmax_element(s.begin(), s.end());
  const float middle = std::sqrt(*low * *high);
  for (float& value : s) value /= middle;
  return s;
}

}  // namespace

std::array<float, kLayerInputs> FoldAwqScales(const DecoderConfig& config,
                                              const std::array<Target, kProjections>& targets,
                                              LayerFloats* layer, LayerStatistics* statistics,
                                              ThreadPool& pool) {
  std::array<float, kLayerInputs> chosen{};
  for (int i = 0; i < kLayerInputs; ++i) {
    const auto input = static_cast<LayerInput>(i);
    InputStatistics& stats = (*statistics)[i];
    const AlignedVector<float> h = stats.Hessian();
    const std::vector<float> magnitudes = ChannelMean(config, input, stats.MeanMagnitudes());
    if (!(*std::max_element(magnitudes.begin(), magnitudes.end()) > 0)) continue;

    struct Sample {
      AlignedVector<float> w = {};
      int64_t rows = 0;
      Target target = {};
      double weight = 1;  // rows that one row stands for
    };
    std::vector<Sample> samples;
    for (int p = 0; p < kProjections; ++p) {
      if (InputOf(static_cast<Projection>(p)) != input) continue;
      const Target& target = targets[p];
      if (target.kind == Target::Kind::kKeep) continue;
      Sample sample{.target = target};
      sample.w = SampleRows(layer->matrices[p], kSampledRows, &sample.rows);
      sample.weight = static_cast<double>(layer->matrices[p].rows) / static_cast<double>(sample.rows);
      samples.push_back(std::move(sample));
    }
    if (samples.empty()) continue;

    double best = HUGE_VAL;
    std::vector<float> best_channels;
    for (int step = 0; step <= kSteps; ++step) {
      const float alpha = static_cast<float>(step) / kSteps;
      const std::vector<float> channels = ScalesFor(magnitudes, alpha);
      const std::vector<float> columns = BroadcastToColumns(config, input, channels);
      double error = 0;
      for (const Sample& sample : samples)
        error +=
            sample.weight * ErrorOf(sample.w, sample.rows, stats.cols(), sample.target, columns, h, pool);
      if (error < best) {
        best = error;
        best_channels = channels;
        chosen[i] = alpha;
      }
    }
    if (chosen[i] == 0) continue;
    const std::vector<float> columns = BroadcastToColumns(config, input, best_channels);
    Fold(input, best_channels, columns, layer);
    stats.Divide(columns);
  }
  return chosen;
}

}  // namespace celer
