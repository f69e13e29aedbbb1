// SmoothQuant: activations that are quantized to eight bits with one scale per token suffer from outlier
// channels, which are much larger than the others. Such a channel is divided by s > 1, and the columns that
// read it are multiplied by s; weights, with a scale per row, bear that better.
//
//   s = (max |x|)^alpha / (max |w|)^(1 - alpha), with the alpha of 0 .. 1 for which the product of rounded
//   activations and rounded weights is nearest to the exact one on a sample of the calibration text
#pragma once

#include <array>

#include "models/config/decoder_config.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fold.h"

namespace celer {

// The statistics of one input: the largest magnitude of each column, and some sampled tokens.
class InputSample {
 public:
  // `total`: tokens that will be seen altogether.
  void Add(const float* x, int64_t tokens, int64_t cols, int64_t total);

  int64_t cols() const { return cols_; }
  int64_t tokens() const { return cols_ > 0 ? static_cast<int64_t>(values_.size()) / cols_ : 0; }
  const AlignedVector<float>& values() const { return values_; }  // [tokens, cols]
  const std::vector<float>& most() const { return most_; }

 private:
  int64_t cols_ = 0, seen_ = 0;
  AlignedVector<float> values_;
  std::vector<float> most_;
};
using LayerSamples = std::array<InputSample, kLayerInputs>;

// Folds the scales into the layer and its statistics; only inputs whose matrices are all "w8a8". Gives the
// chosen alphas, -1 where no scales are best.
std::array<float, kLayerInputs> FoldSmoothScales(const DecoderConfig& config,
                                                 const std::array<Target, kProjections>& targets,
                                                 const LayerSamples& samples, LayerFloats* layer,
                                                 LayerStatistics* statistics, ThreadPool& pool);

// Dynamic per-token quantization: one row to eight bits and back, with the largest magnitude at 127.
void FakeQuantizeInput(const float* x, int64_t cols, float* out);

}  // namespace celer
