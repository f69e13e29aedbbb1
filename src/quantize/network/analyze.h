// Error analysis: the error of the whole quantized network at every layer (graphwise), and that of each layer
// alone (layerwise).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quantize/network/quantizer.h"

namespace celer::ptq {

// The noise of quantized values against float ones.
struct Noise {
  double signal = 0, noise = 0, dot = 0, rounded = 0;  // sums of squares and of products
  double count = 0;

  void Add(std::span<const float> exact, std::span<const float> values);
  double nsr() const;  // noise to signal power
  double snr_db() const;
  double cosine() const;
  double mse() const;
};

// A quantized network beside the float one.
struct Scores {
  std::vector<Noise> outputs;          // by output
  int64_t rows = 0, same = 0;          // rows of the first output, and those with the same largest element
  int64_t labelled = 0;                // samples whose class is known
  int64_t right = 0, right_exact = 0;  // of them: named rightly, rounded and exact

  double nsr() const;           // of all outputs together, each by its own signal: the largest
  double disagreement() const;  // percent of rows
};

using Truth = std::function<std::optional<int64_t>(int64_t sample)>;

// Outputs of the float network, kept for a few samples: many networks are compared with them.
class Reference {
 public:
  static Result<Reference> Make(const graph::Network& network, Samples samples);
  Result<Scores> Compare(graph::Network rounded) const;
  int64_t samples() const { return samples_.count; }

 private:
  Samples samples_;
  std::vector<std::vector<std::vector<float>>> outputs_;  // by sample, by output
  std::vector<int64_t> columns_;                          // of the first output, by sample
};

// The same without keeping anything, for many samples.
Result<Scores> Evaluate(const graph::Network& exact, graph::Network rounded, const Samples& samples,
                        const Truth& truth, const Progress& progress);

struct LayerError {
  std::string name, op;
  Noise graphwise = {};                  // at its output, all layers rounded
  std::optional<double> layerwise = {};  // noise to signal at the network's outputs, likewise
};

// Graphwise errors of all layers of a plan that are not passive.
Result<std::vector<LayerError>> Graphwise(const NetworkQuantizer& quantizer, const QuantizerPlan& plan,
                                          const Inserted& inserted, const Samples& samples,
                                          const Progress& progress);
// Fills `layerwise` of each.
Status Layerwise(const NetworkQuantizer& quantizer, const Reference& reference,
                 std::vector<LayerError>* layers, const Progress& progress);

}  // namespace celer::ptq
