// Step 2 of budget.h: the sensitivity of each matrix, its loss when it alone is quantized.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include "kernels/llm/rms_norm/rms_norm.h"
#include "quantize/llm/budget.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fold.h"

namespace celer {
namespace {

constexpr int64_t kSampledRows = 64;  // of each matrix, for the errors of its formats
constexpr double kReferenceBits = 4;  // the smallest format of at least so many bits is measured
constexpr int64_t kChunk = 32;        // tokens whose logits are in memory at once

// The hidden states of the text when one matrix is quantized.
struct Stream {
  size_t price = 0;  // whose, of prices_
  AlignedVector<float> states;
};

class Meter {
 public:
  Meter(const Model& model, const QuantizePlan& plan, std::vector<TensorPrices> formats, ThreadPool& pool)
      : model_(model), config_(model.config()), pool_(pool), prices_(std::move(formats)) {
    for (size_t i = 0; i < prices_.size(); ++i) by_name_[plan.tensors[prices_[i].tensor].name] = i;
  }

  Result<std::vector<TensorPrices>> Run(const CalibrationText& text, const QuantizeProgress& progress) {
    CELER_ASSIGN(Calibration calibration, Calibration::Make(model_, text.tokens, text.window, pool_));
    window_ = text.window;
    CELER_RETURN_IF_ERROR(Embedding(calibration, text));
    for (int64_t i = 0; i < config_.layers; ++i) {
      CELER_RETURN_IF_ERROR(Layer(i, &calibration));
      if (progress) CELER_RETURN_IF_ERROR(progress(i + 1, config_.layers));
    }
    Head(calibration);
    return std::move(prices_);
  }

 private:
  // The matrix quantized to the format that is measured, and every format's loss relative to that one's.
  // False: nothing is lost by any of them.
  bool RoundToReference(size_t price, LayerFloats::Matrix* m, const float* importance) {
    std::vector<FormatPrice>& formats = prices_[price].prices;
    int64_t rows = 0;
    const AlignedVector<float> sample = SampleRows(*m, kSampledRows, &rows);
    AlignedVector<float> rounded(sample.size());
    const FormatPrice* reference = nullptr;
    for (FormatPrice& format : formats) {
      FakeQuantize(sample.data(), rows, m->cols, format.target, importance, importance ? 2 : 0,
                   rounded.data(), pool_);
      double error = 0;
      for (int64_t i = 0; i < rows * m->cols; ++i) {
        const double miss = static_cast<double>(sample[i]) - rounded[i];
        error += miss * miss * (importance ? importance[i % m->cols] : 1.0f);
      }
      format.loss = error;
      const bool large_enough = format.target.BitsPerWeight(m->cols) >= kReferenceBits;
      if (error > 0 &&
          (!reference || (large_enough && reference->target.BitsPerWeight(m->cols) < kReferenceBits)))
        reference = &format;
    }
    if (!reference) return false;
    const double unit = reference->loss;
    for (FormatPrice& format : formats) format.loss /= unit;
    AlignedVector<float> out(m->values.size());
    FakeQuantize(m->values.data(), m->rows, m->cols, reference->target, importance, importance ? 2 : 0,
                 out.data(), pool_);
    m->values = std::move(out);
    return true;
  }

  static LayerFloats::Matrix MatrixOf(const WeightView& view, ThreadPool& pool) {
    LayerFloats::Matrix m{view.rows, view.cols, {}};
    m.values.resize(view.rows * view.cols);
    pool.ParallelFor(view.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) DecodeWeightRow(view, r, m.values.data() + r * view.cols);
    });
    return m;
  }

  // Tied embedding and head are quantized in both places: the stream starts here and ends there.
  Status Embedding(const Calibration& calibration, const CalibrationText& text) {
    const auto found = by_name_.find(model_.weights().embedding.name);
    if (found == by_name_.end()) return {};
    LayerFloats::Matrix table = MatrixOf(model_.weights().embedding, pool_);
    if (!RoundToReference(found->second, &table, nullptr)) return {};
    Stream stream{found->second, {}};
    for (int64_t t = 0; t < calibration.tokens(); ++t) {
      const float* row = table.values.data() + text.tokens[t] * table.cols;
      stream.states.insert(stream.states.end(), row, row + table.cols);
    }
    streams_.push_back(std::move(stream));
    return {};
  }

  std::vector<float*> WindowsOf(Stream* stream) const {
    std::vector<float*> out;
    for (size_t at = 0; at < stream->states.size(); at += static_cast<size_t>(window_ * config_.hidden))
      out.push_back(stream->states.data() + at);
    return out;
  }

  Status Layer(int64_t index, Calibration* calibration) {
    const LayerWeights& weights = model_.weights().layers[index];
    LayerFloats layer = LayerFloats::Of(model_, index, pool_);
    // Streams with an earlier matrix quantized go on through the layer as it is.
    std::vector<float*> others;
    for (Stream& stream : streams_)
      for (float* window : WindowsOf(&stream)) others.push_back(window);
    CELER_RETURN_IF_ERROR(calibration->AdvanceOthers(layer, index, others));

    const AlignedVector<float> before(calibration->states().begin(), calibration->states().end());
    std::array<std::vector<float>, kLayerInputs> squares;
    CELER_RETURN_IF_ERROR(calibration->Advance(
        layer, index, [&](LayerInput input, const float* x, int64_t tokens, int64_t cols) {
          std::vector<float>& sum = squares[static_cast<size_t>(input)];
          sum.resize(cols);
          for (int64_t t = 0; t < tokens; ++t)
            for (int64_t c = 0; c < cols; ++c) sum[c] += x[t * cols + c] * x[t * cols + c];
        }));
    for (int p = 0; p < kProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      const auto found = by_name_.find(ViewOf(weights, projection).name);
      if (found == by_name_.end()) continue;
      LayerFloats::Matrix exact = layer.matrices[p];
      if (RoundToReference(found->second, &layer.matrices[static_cast<size_t>(p)],
                           squares[static_cast<size_t>(InputOf(projection))].data())) {
        Stream stream{found->second, before};
        CELER_RETURN_IF_ERROR(calibration->AdvanceOthers(layer, index, WindowsOf(&stream)));
        streams_.push_back(std::move(stream));
      }
      layer.matrices[p] = std::move(exact);
    }
    return {};
  }

  // Log-probabilities [tokens, vocab] of some rows of hidden states.
  void Logprobs(const PackedWeight& head, const float* states, int64_t tokens, AlignedVector<float>* out) {
    AlignedVector<float> normed(static_cast<size_t>(tokens * config_.hidden));
    RmsNorm({.x = states,
             .weight = model_.weights().norm,
             .eps = config_.norm_eps,
             .rows = tokens,
             .cols = config_.hidden,
             .out = normed.data(),
             .pool = &pool_});
    out->resize(tokens * config_.vocab);
    head.Multiply(normed.data(), tokens, nullptr, nullptr, out->data());
    pool_.ParallelFor(tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        float* row = out->data() + t * config_.vocab;
        const float top = *std::max_element(row, row + config_.vocab);
        double sum = 0;
        for (int64_t v = 0; v < config_.vocab; ++v) sum += std::exp(row[v] - top);
        const float log_sum = top + static_cast<float>(std::log(sum));
        for (int64_t v = 0; v < config_.vocab; ++v) row[v] -= log_sum;
      }
    });
  }

  // Mean divergence of each stream over the second half of each window, where there is enough context.
  void Head(const Calibration& calibration) {
    const WeightView& view = model_.weights().head;
    const LayerFloats::Matrix exact = MatrixOf(view, pool_);
    const PackedWeight head(exact.values.data(), exact.rows, exact.cols, pool_);
    const auto found = by_name_.find(view.name);
    LayerFloats::Matrix rounded = exact;
    std::optional<PackedWeight> other;
    if (found != by_name_.end()) {
      const bool tied = view.name == model_.weights().embedding.name;
      if (RoundToReference(found->second, &rounded, nullptr)) {
        other.emplace(rounded.values.data(), rounded.rows, rounded.cols, pool_);
        if (!tied)
          streams_.push_back({found->second, {calibration.states().begin(), calibration.states().end()}});
      }
    }
    std::vector<double> sums(streams_.size());
    int64_t counted = 0;
    AlignedVector<float> p, q;
    for (int64_t w = 0; w < calibration.windows(); ++w)
      for (int64_t t = window_ / 2; t < window_; t += kChunk) {
        const int64_t tokens = std::min(kChunk, window_ - t);
        const int64_t at = (w * window_ + t) * config_.hidden;
        Logprobs(head, calibration.states().data() + at, tokens, &p);
        counted += tokens;
        for (size_t s = 0; s < streams_.size(); ++s) {
          const bool own = other && found->second == streams_[s].price;
          Logprobs(own ? *other : head, streams_[s].states.data() + at, tokens, &q);
          sums[s] += Divergence(p, q);
        }
      }
    for (size_t s = 0; s < streams_.size(); ++s) {
      const double loss = sums[s] / static_cast<double>(counted);
      for (FormatPrice& format : prices_[streams_[s].price].prices) format.loss *= loss;
    }
  }

  // The sum over all tokens of sum p (log p - log q).
  double Divergence(const AlignedVector<float>& p, const AlignedVector<float>& q) {
    const auto tokens = static_cast<int64_t>(p.size()) / config_.vocab;
    std::vector<double> sums(static_cast<size_t>(tokens));
    pool_.ParallelFor(tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        double sum = 0;
        for (int64_t i = t * config_.vocab; i < (t + 1) * config_.vocab; ++i)
          sum += static_cast<double>(std::exp(p[i])) * (p[i] - q[i]);
        sums[t] = std::max(sum, 0.0);
      }
    });
    double sum = 0;
    for (const double value : sums) sum += value;
    return sum;
  }

  const Model& model_;
  const DecoderConfig& config_;
  ThreadPool& pool_;
  int64_t window_ = 0;
  std::vector<TensorPrices> prices_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::deque<Stream> streams_;
};

}  // namespace

Result<std::vector<TensorPrices>> MeasureSensitivity(const Model& model, const QuantizePlan& plan,
                                                     std::vector<TensorPrices> formats,
                                                     const CalibrationText& text, ThreadPool& pool,
                                                     const QuantizeProgress& progress) {
  return Meter(model, plan, std::move(formats), pool).Run(text, progress);
}

}  // namespace celer
