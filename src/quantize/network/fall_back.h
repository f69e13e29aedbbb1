// Mixed-precision fallback: the fewest layers, worst layerwise error first, that stay float until a bound
// holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quantize/network/analyze.h"

namespace celer::ptq {

struct Bounds {
  int64_t worst = 0;                     // so many of the worst layers stay float anyway
  std::optional<double> max_error = {};  // noise to signal at the outputs
  std::optional<double> max_drop = {};   // see Answers
  bool any() const { return worst > 0 || max_error || max_drop; }
};

// The top-1 class of every row of the first output of the float network. Many quantized networks are compared
// with it: of their answers, only the class indices are kept.
class Answers {
 public:
  // `truth` may be none, or not know every sample.
  static Result<Answers> Make(const graph::Network& exact, Samples samples, Truth truth,
                              const Progress& progress);

  // The accuracy drop, in percent: where labels are known, right answers that became wrong less wrong ones
  // that became right; else all answers that changed. More than `most` is not measured to its end.
  struct Drop {
    double percent = 0;
    bool at_least = false;
  };
  Result<Drop> MeasureDrop(graph::Network rounded, double most) const;
  bool labelled() const { return labelled_ > 0; }

 private:
  Samples samples_;
  Truth truth_;
  std::vector<std::vector<int64_t>> best_;       // by sample, by row
  int64_t rows_ = 0, labelled_ = 0, right_ = 0;  // of all samples
};

struct Dispatch {
  FloatLayers floats;
  std::vector<std::string> steps;  // what was tried, a sentence each
  Scores scores;                   // at the end, on the samples of the reference
};

// `answers` are those that max_drop speaks of.
Result<Dispatch> FallBack(const NetworkQuantizer& quantizer, const std::vector<LayerError>& layers,
                          FloatLayers floats, const Bounds& bounds, const Reference& reference,
                          const Answers* answers, const Progress& progress);

}  // namespace celer::ptq
