// Cross-layer equalization: channels between two convolutions are scaled so that the weights on both sides
// span the same range, and per-tensor scales lose little.
#pragma once

#include <map>
#include <vector>

#include "base/result.h"
#include "graph/load/load_network.h"

namespace celer::ptq {

using ChannelPeaks = std::map<size_t, std::vector<float>>;  // by node: the largest value of each channel

struct EqualizeReport {
  int pairs = 0;
  int64_t channels = 0, held = 0;  // of all pairs; held: they reach the bound of a Clip and stay as they are
};

// For conv, Relu, conv: channel c of the first is divided by s_c, and the second multiplies it by s_c, with
// s_c = sqrt(range of the first's row c / range of the second's column c). Repeated over all pairs until it
// converges. What the network computes stays the same. For a Clip from zero to a bound in between, `peaks`
// says how large each channel gets: those that reach the bound stay, and the others are not scaled up beyond
// it.
Result<EqualizeReport> Equalize(graph::Network* network, const ChannelPeaks& peaks);

// Nodes between two convolutions whose peaks Equalize() needs: Clips with an upper bound.
std::vector<size_t> NodesWithPeaks(const graph::Network& network);

}  // namespace celer::ptq
