// From a float network to a quantized one: celer quantize NET.onnx without its flags.
//
//   1. Open: optimizes the network (batch norms are folded into convolutions), and finds out which values may
//      be quantized.
//   2. Calibrate: samples pass, the network is equalized if that is asked for, ranges are chosen. Or a recipe
//      brings what samples would tell.
//   3. Build: any choice of layers as integers, in QDQ form; dynamic ones need no second step.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "graph/load/load_network.h"
#include "quantize/network/calibrate.h"
#include "quantize/network/dynamic.h"
#include "quantize/network/equalize.h"
#include "quantize/network/insert.h"
#include "quantize/network/observer.h"
#include "quantize/network/quantizer_plan.h"
#include "quantize/network/run.h"

namespace celer::ptq {

struct NetworkOptions {
  RangeOptions range = {};
  bool per_channel = true;        // weights have a scale for each output channel
  bool equalize = false;          // cross-layer equalization
  bool correct_bias = true;       // biases take back what rounding the weights adds on average
  bool align_add = false;         // see PlanOptions
  bool quantize_outputs = false;  // see PlanOptions
  // Dynamic quantization: no ranges, no samples. Of the other options only per_channel counts.
  bool dynamic = false;
};

using FloatLayers = std::map<std::string, std::string>;  // name: why it stays float

class NetworkQuantizer {
 public:
  // An error for a network that has quantizers already, or nothing to quantize.
  static Result<NetworkQuantizer> Open(graph::Network network, const NetworkOptions& options);

  const NetworkOptions& options() const { return options_; }
  const graph::Network& original() const { return original_; }  // fewer operators, not equalized
  const graph::Network& network() const { return network_; }    // what is rounded
  const EqualizeReport& equalized() const { return equalized_; }
  const ValueFacts& facts() const { return facts_; }

  Status Calibrate(const Samples& samples, const Progress& progress);
  Status Use(Calibration calibration);  // instead
  const Calibration& calibration() const { return calibration_; }

  QuantizerPlan PlanWithout(const FloatLayers& floats) const;
  QuantizerPlan PlanOnly(const std::string& layer) const;
  Result<Inserted> Build(const QuantizerPlan& plan) const;
  Result<Grids> GridsFor(const QuantizerPlan& plan) const;

 private:
  PlanOptions BasePlan() const;
  Status Equalize(const ChannelPeaks& peaks);

  NetworkOptions options_;
  graph::Network original_, network_;
  EqualizeReport equalized_;
  ValueFacts facts_;
  Calibration calibration_;
};

// Of those that are read.
int64_t ConstantBytes(const graph::Graph& graph);

}  // namespace celer::ptq
