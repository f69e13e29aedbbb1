// celer graph check --precision f16: how far a network in f16 is from itself in f32.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/graph/inputs.h"

namespace celer::cli {

struct PrecisionCheck {
  std::string model;
  InputFlags input;
  double tolerance = 0.02;  // of the largest error, relative to the scale of an output
  int threads = 0;
};
// Prints, and says whether all outputs are within the tolerance.
Result<bool> CheckF16(const PrecisionCheck& check);

}  // namespace celer::cli
