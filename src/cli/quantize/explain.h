// What celer quantize --explain prints.
#pragma once

#include <string>

#include "base/result.h"
#include "quantize/llm/quantize.h"

namespace celer::cli {

// Bytes before and after for each format, what rounding a sample of the rows costs, and how fast decoding can
// be on this machine at best.
Result<std::string> ExplainPlan(const QuantizePlan& plan, const TensorSource& source);

}  // namespace celer::cli
