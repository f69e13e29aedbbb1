// Inserts quantizers into a network: the QDQ form that other runtimes read too.
#pragma once

#include <map>
#include <vector>

#include "base/result.h"
#include "graph/load/load_network.h"
#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {

using Grids = std::map<ValueId, Grid>;  // by value
using ChannelMeans =
    std::map<size_t, std::vector<float>>;  // by product's node: the mean of each input channel

struct InsertOptions {
  bool per_channel = true;
  bool power_of_two = false;
  const ChannelMeans* means = nullptr;  // for bias correction; null: none
};

struct Inserted {
  graph::Network network;
  std::map<ValueId, ValueId> rounded;  // by quantized value: what its readers see
};

// Each quantized value passes QuantizeLinear and DequantizeLinear; weights are stored as i8 and biases as
// i32, with DequantizeLinear behind them. Ids of the values that were there stay.
Result<Inserted> InsertQuantizers(const graph::Network& network, const QuantizerPlan& plan,
                                  const Grids& grids, const InsertOptions& options);

// Bias correction. What quantizing the weights adds to each output on average is sum over inputs of (w' - w)
// * mean(x); it is subtracted from the bias.
std::vector<double> MeanShift(const graph::Constant& weight, const Product& product,
                              const QuantizedWeights& rounded, const ChannelLayout& layout,
                              const std::vector<float>& means);

}  // namespace celer::ptq
