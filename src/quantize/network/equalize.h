// Cross-layer equalization: channels between two convolutions are scaled so that the weights on both sides
// span the same range, and one scale for a whole tensor loses little.
#pragma once

#include <map>
#include <vector>

#include "base/result.h"
#include "graph/load/load_onnx.h"

namespace celer::ptq {

using ChannelPeaks = std::map<size_t, std::vector<float>>;  // by node: the largest value of each channel

struct EqualizeReport {
  int pairs = 0;
  int64_t channels = 0, held = 0;  // of all pairs; held: they reach the bound of a Clip and stay as they are
};

// For conv, Relu, conv: channel c of the first becomes 1 / s_c of what it was, and the second takes s_c times
// as much of it, with s_c = sqrt(range of the first's row c / range of the second's column c). Again and
// again over all pairs until nothing changes. What the network computes stays. For a Clip from zero to a
// bound in between, `peaks` says how large each channel gets: those that reach the bound stay, and the others
// are not scaled up beyond it.
Result<EqualizeReport> Equalize(graph::Network* network, const ChannelPeaks& peaks);

// Nodes between two convolutions whose peaks Equalize() needs: Clips with an upper bound.
std::vector<size_t> NodesWithPeaks(const graph::Network& network);

}  // namespace celer::ptq
