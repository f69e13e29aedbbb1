// An observer: watches the values of one tensor while calibration samples pass, and chooses the range of its
// integers. Its memory does not depend on the number of samples.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quantize/network/grid.h"

namespace celer::ptq {

enum class RangeMethod : uint8_t {
  kMinMax,      // all that was seen
  kAverage,     // moving averages of each sample's least and largest value
  kPercentile,  // all but a few outliers
  kKl,          // least Kullback-Leibler divergence between the histograms before and after, as TensorRT
  kMse,         // least squared error
};
Result<RangeMethod> ParseRangeMethod(std::string_view text);
const char* Name(RangeMethod method);

struct RangeOptions {
  RangeMethod method = RangeMethod::kMinMax;
  double percentile = 99.999;
  ActivationType type = ActivationType::kU8;
  bool power_of_two = false;
};

class Observer {
 public:
  // One sample. An error if a value is not finite.
  Status Add(std::span<const float> values);

  bool seen() const { return count_ > 0; }
  Range Choose(const RangeOptions& options) const;

 private:
  Range Percentile(double percent, bool symmetric) const;
  void Widen(double magnitude);

  // A histogram of [-limit, limit] in 2 * kHalf bins. The limit is a power of two that doubles when a value
  // lies outside: neighbouring bins are then joined, so that one pass over the samples is enough.
  std::vector<uint64_t> bins_;
  double limit_ = 0;
  uint64_t zeros_ = 0;  // not in the bins: Relu makes so many that they would hide the rest
  uint64_t count_ = 0;
  int64_t samples_ = 0;
  double low_ = 0, high_ = 0, average_low_ = 0, average_high_ = 0;
};

// Counts of equal bins; bin i spans [(i - zero) * width, (i - zero + 1) * width).
struct Histogram {
  std::span<const uint64_t> bins;
  int64_t zero = 0;
  double width = 0;

  double center(int64_t i) const { return (static_cast<double>(i - zero) + 0.5) * width; }
};
// Searches ranges inside `all`.
Range KlRange(const Histogram& histogram, const Range& all, bool symmetric);
Range MseRange(const Histogram& histogram, const Range& all, ActivationType type, bool power_of_two);

}  // namespace celer::ptq
