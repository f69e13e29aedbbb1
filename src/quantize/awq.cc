#include "quantize/awq.h"

#include <algorithm>
#include <cmath>

#include "formats/decode.h"
#include "quantize/int_tensor.h"

namespace celer {
namespace {

constexpr int kSteps = 20;             // alphas that are tried
constexpr int64_t kSampledRows = 384;  // of each matrix: enough to compare alphas
constexpr int kSearchCandidates = 2;   // grids of a group while searching

// Every so-many-th row of a matrix.
AlignedVector<float> SampleRows(const LayerFloats::Matrix& m, int64_t* rows) {
  const int64_t step = std::max<int64_t>(1, m.rows / kSampledRows);
  *rows = (m.rows + step - 1) / step;
  AlignedVector<float> out(static_cast<size_t>(*rows * m.cols));
  for (int64_t r = 0; r < *rows; ++r)
    std::copy_n(m.values.data() + r * step * m.cols, m.cols, out.data() + r * m.cols);
  return out;
}

// trace(D H D^T) with D = Q(W s) / s - W.
double ErrorOf(const AlignedVector<float>& w, int64_t rows, int64_t cols, const Target& target,
               std::span<const float> s, const AlignedVector<float>& h, ThreadPool& pool) {
  AlignedVector<float> scaled(w.size()), d(w.size()), dh(w.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      scaled[static_cast<size_t>(r * cols + c)] =
          w[static_cast<size_t>(r * cols + c)] * s[static_cast<size_t>(c)];
  RoundTrip(scaled.data(), rows, cols, target, nullptr, kSearchCandidates, d.data(), pool);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const auto at = static_cast<size_t>(r * cols + c);
      d[at] = d[at] / s[static_cast<size_t>(c)] - w[at];
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

// Magnitudes of the channels that can be scaled apart: of o's input, those of v.
std::vector<float> Channels(const DecoderConfig& c, LayerInput input, const std::vector<float>& magnitudes) {
  if (input != LayerInput::kO) return magnitudes;
  const int64_t group = c.heads / c.kv_heads;
  std::vector<float> out(static_cast<size_t>(c.kv_heads * c.head_dim));
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t d = 0; d < c.head_dim; ++d)
      out[static_cast<size_t>(h / group * c.head_dim + d)] +=
          magnitudes[static_cast<size_t>(h * c.head_dim + d)] / static_cast<float>(group);
  return out;
}
// The other way: one number for each column.
std::vector<float> Columns(const DecoderConfig& c, LayerInput input, const std::vector<float>& channels) {
  if (input != LayerInput::kO) return channels;
  const int64_t group = c.heads / c.kv_heads;
  std::vector<float> out;
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t d = 0; d < c.head_dim; ++d)
      out.push_back(channels[static_cast<size_t>(h / group * c.head_dim + d)]);
  return out;
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

void DivideRows(LayerFloats::Matrix* m, std::vector<float>* bias, const std::vector<float>& by) {
  for (int64_t r = 0; r < m->rows; ++r) {
    for (int64_t c = 0; c < m->cols; ++c)
      m->values[static_cast<size_t>(r * m->cols + c)] /= by[static_cast<size_t>(r)];
    if (!bias->empty()) (*bias)[static_cast<size_t>(r)] /= by[static_cast<size_t>(r)];
  }
}

void Fold(LayerInput input, const std::vector<float>& channels, const std::vector<float>& columns,
          LayerFloats* layer) {
  for (int p = 0; p < kProjections; ++p) {
    if (InputOf(static_cast<Projection>(p)) != input) continue;
    LayerFloats::Matrix& m = layer->matrices[p];
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.cols; ++c)
        m.values[static_cast<size_t>(r * m.cols + c)] *= columns[static_cast<size_t>(c)];
  }
  switch (input) {
    case LayerInput::kQkv:
      for (size_t i = 0; i < channels.size(); ++i) layer->attention_norm[i] /= channels[i];
      return;
    case LayerInput::kGateUp:
      for (size_t i = 0; i < channels.size(); ++i) layer->ffn_norm[i] /= channels[i];
      return;
    case LayerInput::kO:
      return DivideRows(&(*layer)[Projection::kV], &layer->v_bias, channels);
    case LayerInput::kDown:
      return DivideRows(&(*layer)[Projection::kUp], &layer->up_bias, channels);
  }
}

}  // namespace

void RoundTrip(const float* w, int64_t rows, int64_t cols, const Target& target, const float* importance,
               int candidates, float* out, ThreadPool& pool) {
  if (target.kind == Target::Kind::kKeep) {
    std::copy_n(w, rows * cols, out);
  } else if (target.kind == Target::Kind::kInt) {
    const IntTensor ints = RoundToNearest(w, rows, cols, target, importance, candidates, pool);
    pool.ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) ints.DecodeRow(r, out + r * cols);
    });
  } else {
    const auto bytes = static_cast<size_t>(*BytesFor(target.dtype, cols));
    pool.ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> row(bytes);
      for (int64_t r = begin; r < end; ++r) {
        EncodeRow(target.dtype, w + r * cols, cols, row.data(), importance);
        DecodeRow(target.dtype, row.data(), cols, out + r * cols);
      }
    });
  }
}

std::array<float, kLayerInputs> FoldAwqScales(const DecoderConfig& config,
                                              const std::array<Target, kProjections>& targets,
                                              LayerFloats* layer, LayerStatistics* statistics,
                                              ThreadPool& pool) {
  std::array<float, kLayerInputs> chosen{};
  for (int i = 0; i < kLayerInputs; ++i) {
    const auto input = static_cast<LayerInput>(i);
    InputStatistics& stats = (*statistics)[static_cast<size_t>(i)];
    const AlignedVector<float> h = stats.Hessian();
    const std::vector<float> magnitudes = Channels(config, input, stats.MeanMagnitudes());
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
      const Target& target = targets[static_cast<size_t>(p)];
      if (target.kind == Target::Kind::kKeep) continue;
      Sample sample{.target = target};
      sample.w = SampleRows(layer->matrices[p], &sample.rows);
      sample.weight = static_cast<double>(layer->matrices[p].rows) / static_cast<double>(sample.rows);
      samples.push_back(std::move(sample));
    }
    if (samples.empty()) continue;

    double best = HUGE_VAL;
    std::vector<float> best_channels;
    for (int step = 0; step <= kSteps; ++step) {
      const float alpha = static_cast<float>(step) / kSteps;
      const std::vector<float> channels = ScalesFor(magnitudes, alpha);
      const std::vector<float> columns = Columns(config, input, channels);
      double error = 0;
      for (const Sample& sample : samples)
        error +=
            sample.weight * ErrorOf(sample.w, sample.rows, stats.cols(), sample.target, columns, h, pool);
      if (error < best) {
        best = error;
        best_channels = channels;
        chosen[static_cast<size_t>(i)] = alpha;
      }
    }
    if (chosen[static_cast<size_t>(i)] == 0) continue;
    const std::vector<float> columns = Columns(config, input, best_channels);
    Fold(input, best_channels, columns, layer);
    stats.Divide(columns);
  }
  return chosen;
}

}  // namespace celer
