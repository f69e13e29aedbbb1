// Cross-layer equalization: channels between two convolutions are scaled so that the weights on both sides
// span the same range, and one scale for a whole tensor loses little.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "graph/load_onnx.h"

namespace celer::ptq {

struct EqualizeReport {
  int pairs = 0;
  std::vector<std::string> unclipped = {};  // Clips that became Relus: a bound would differ per channel
};

// For conv, Relu, conv: channel c of the first becomes 1 / s_c of what it was, and the second takes s_c times
// as much of it, with s_c = sqrt(range of the first's row c / range of the second's column c). Again and
// again over all pairs until nothing changes. What the network computes stays, but for bounds above zero.
Result<EqualizeReport> Equalize(graph::Network* network);

}  // namespace celer::ptq
