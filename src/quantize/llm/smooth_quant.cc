#include "quantize/llm/smooth_quant.h"

#include <algorithm>
#include <cmath>

#include "formats/fit.h"

namespace celer {
namespace {

constexpr int kSteps = 10;               // alphas that are tried, beside no scales at all
constexpr int64_t kSampledRows = 256;    // of each matrix
constexpr int64_t kSampledTokens = 256;  // of each input

// The largest magnitude of each column over all matrices that read the input.
std::vector<float> WeightColumnMax(const LayerFloats& layer, LayerInput input, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  for (int p = 0; p < kProjections; ++p) {
    if (InputOf(static_cast<Projection>(p)) != input) continue;
    const LayerFloats::Matrix& m = layer.matrices[p];
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < cols; ++c) out[c] = std::max(out[c], std::fabs(m.values[r * cols + c]));
  }
  return out;
}

std::vector<float> ScalesFor(const std::vector<float>& x, const std::vector<float>& w, float alpha) {
  const float x_floor = 1e-4f * *std::max_element(x.begin(), x.end());
  const float w_floor = 1e-4f * *std::max_element(w.begin(), w.end());
  std::vector<float> s;
  double logs = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    s.push_back(std::pow(std::max(x[i], x_floor), alpha) / std::pow(std::max(w[i], w_floor), 1 - alpha));
    logs += std::log(s.back());
  }
  const auto middle = static_cast<float>(std::exp(logs / static_cast<double>(s.size())));
  for (float& value : s) value /= middle;
  return s;
}

// out [tokens, rows] = x w^T.
void Multiply(const float* x, int64_t tokens, const float* w, int64_t rows, int64_t cols, float* out,
              ThreadPool& pool) {
  Product({.m = tokens,
           .n = rows,
           .k = cols,
           .a = GemmOperand::Rows(x, cols),
           .b = GemmOperand::Transposed(w, cols),
           .out = out,
           .out_stride = rows},
          pool);
}

// The matrices of one input, some rows of each, and their exact products with the sampled tokens.
class Search {
 public:
  Search(const LayerFloats& layer, LayerInput input, const InputSample& sample, ThreadPool& pool)
      : sample_(sample), pool_(pool) {
    for (int p = 0; p < kProjections; ++p) {
      if (InputOf(static_cast<Projection>(p)) != input) continue;
      int64_t rows = 0;
      const AlignedVector<float> w = SampleRows(layer.matrices[p], kSampledRows, &rows);
      w_.insert(w_.end(), w.begin(), w.end());
      rows_ += rows;
    }
    exact_.resize(sample.tokens() * rows_);
    Multiply(sample.values().data(), sample.tokens(), w_.data(), rows_, sample.cols(), exact_.data(), pool);
    for (int64_t t = 0; t < sample.tokens(); ++t) powers_.push_back(Power(exact_.data() + t * rows_));
    std::vector<double> sorted = powers_;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2), sorted.end());
    usual_ = std::max(sorted[sorted.size() / 2], 1e-30);
  }

  // Squared error of each token relative to its own product, or to a usual one if that is larger: the few
  // outlier tokens do not decide alone.
  double ErrorWith(const std::vector<float>& s) const {
    const int64_t cols = sample_.cols(), tokens = sample_.tokens();
    AlignedVector<float> x(sample_.values().size()), w(w_.size()), out(exact_.size());
    pool_.ParallelFor(tokens, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t c = 0; c < cols; ++c) row[c] = sample_.values()[t * cols + c] / s[c];
        FakeQuantizeInput(row.data(), cols, x.data() + t * cols);
      }
    });
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols; ++c) w[r * cols + c] = w_[r * cols + c] * s[c];
    AlignedVector<float> rounded(w.size());
    FakeQuantize(w.data(), rows_, cols, Target::Parse("w8a8").value(), nullptr, 0, rounded.data(), pool_);
    Multiply(x.data(), tokens, rounded.data(), rows_, cols, out.data(), pool_);
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      double miss = 0;
      for (int64_t r = t * rows_; r < (t + 1) * rows_; ++r) {
        const double d = static_cast<double>(out[r]) - exact_[r];
        miss += d * d;
      }
      sum += miss / std::max(powers_[t], usual_);
    }
    return sum;
  }

 private:
  double Power(const float* y) const {
    double sum = 0;
    for (int64_t r = 0; r < rows_; ++r) sum += static_cast<double>(y[r]) * y[r];
    return sum;
  }

  const InputSample& sample_;
  ThreadPool& pool_;
  AlignedVector<float> w_, exact_;  // [rows, cols], [tokens, rows]
  int64_t rows_ = 0;
  std::vector<double> powers_;  // of each token's product
  double usual_ = 0;
};

bool AllQuantizeInputs(const std::array<Target, kProjections>& targets, LayerInput input) {
  for (int p = 0; p < kProjections; ++p)
    if (InputOf(static_cast<Projection>(p)) == input && !targets[p].int8_inputs) return false;
  return true;
}

}  // namespace

void FakeQuantizeInput(const float* x, int64_t cols, float* out) {
  const float top = AbsMax(x, cols);
  const float scale = top / 127, inverse = top > 0 ? 127 / top : 0;
  for (int64_t c = 0; c < cols; ++c) out[c] = std::nearbyint(x[c] * inverse) * scale;
}

void InputSample::Add(const float* x, int64_t tokens, int64_t cols, int64_t total) {
  cols_ = cols;
  most_.resize(cols);
  const int64_t step = std::max<int64_t>(1, total / kSampledTokens);
  for (int64_t t = 0; t < tokens; ++t, ++seen_) {
    const float* row = x + t * cols;
    for (int64_t c = 0; c < cols; ++c) most_[c] = std::max(most_[c], std::fabs(row[c]));
    if (seen_ % step == 0) values_.insert(values_.end(), row, row + cols);
  }
}

std::array<float, kLayerInputs> FoldSmoothScales(const DecoderConfig& config,
                                                 const std::array<Target, kProjections>& targets,
                                                 const LayerSamples& samples, LayerFloats* layer,
                                                 LayerStatistics* statistics, ThreadPool& pool) {
  std::array<float, kLayerInputs> chosen;
  chosen.fill(-1);
  for (int i = 0; i < kLayerInputs; ++i) {
    const auto input = static_cast<LayerInput>(i);
    const InputSample& sample = samples[i];
    if (!AllQuantizeInputs(targets, input) || sample.tokens() == 0) continue;
    const std::vector<float> x = ChannelMax(config, input, sample.most());
    const std::vector<float> w = ChannelMax(config, input, WeightColumnMax(*layer, input, sample.cols()));
    if (!(*std::max_element(x.begin(), x.end()) > 0) || !(*std::max_element(w.begin(), w.end()) > 0))
      continue;
    const Search search(*layer, input, sample, pool);
    double best = search.ErrorWith(std::vector<float>(static_cast<size_t>(sample.cols()), 1.0f));
    std::vector<float> best_channels;
    for (int step = 0; step <= kSteps; ++step) {
      const float alpha = static_cast<float>(step) / kSteps;
      const std::vector<float> channels = ScalesFor(x, w, alpha);
      const double error = search.ErrorWith(BroadcastToColumns(config, input, channels));
      if (error >= best) continue;
      best = error;
      best_channels = channels;
      chosen[i] = alpha;
    }
    if (best_channels.empty()) continue;
    const std::vector<float> columns = BroadcastToColumns(config, input, best_channels);
    Fold(input, best_channels, columns, layer);
    (*statistics)[i].Divide(columns);
  }
  return chosen;
}

}  // namespace celer
