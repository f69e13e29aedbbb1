// Calibration: statistics of the values of a network on samples.
#pragma once

#include <map>
#include <vector>

#include "base/result.h"
#include "quantize/network/equalize.h"
#include "quantize/network/insert.h"
#include "quantize/network/observer.h"
#include "quantize/network/quantizer_plan.h"
#include "quantize/network/run.h"

namespace celer::ptq {

using Ranges = std::map<ValueId, Range>;

struct Calibration {
  Ranges ranges;       // of every value that may be rounded
  ChannelMeans means;  // of the inputs of products
  ChannelPeaks peaks;  // for equalization
};

// Samples pass once, one by one: memory does not grow with their number. An error about a sample that does
// not fit, or about a value that is not finite.
Result<Calibration> Calibrate(const graph::Network& network, const ValueFacts& facts, const Samples& samples,
                              const RangeOptions& options, const Progress& progress);

// The largest value of each channel that these nodes give, on the samples.
Result<ChannelPeaks> FindPeaks(const graph::Network& network, const std::vector<size_t>& nodes,
                               const Samples& samples, const Progress& progress);

}  // namespace celer::ptq
