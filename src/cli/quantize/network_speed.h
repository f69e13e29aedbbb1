// What rounding a network promises in time, before it is done.
#pragma once

#include <string>

#include "quantize/network/quantizer.h"

namespace celer::cli {

// The least time of a run as it is and with the layers of the plan as integers, by what each operator must
// read, write and compute on this machine; or how to have it measured. A line or two.
std::string PredictedSpeed(const ptq::NetworkQuantizer& quantizer, const ptq::QuantizerPlan& plan);

}  // namespace celer::cli
