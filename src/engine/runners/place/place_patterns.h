// Patterns of tensors (PlacementOptions::place) to what a plan can place: whole layers, and the experts of layers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "celer/options.h"
#include "models/load/model.h"

namespace celer {

// The names of a layer's tensors in the file. Norms and biases go with the others.
struct LayerTensors {
  std::vector<std::string> own;             // of attention and a dense block
  std::vector<std::string> experts;         // none: a dense layer
  std::vector<std::string> beside_experts;  // router and shared expert, which are where the experts are
};
LayerTensors TensorsOf(const LayerWeights& layer);

struct PlacedTensors {
  std::vector<Device> layers;  // of each layer; empty if no pattern places one
  std::vector<bool>
      cpu_experts;  // of each layer that is on a GPU, whether its experts are on the CPU; empty if none is
};

struct PlaceQuery {
  std::span<const PlacePattern> patterns;
  std::span<const Device> devices;  // of each pattern
  Device rest;                      // of layers that no pattern finds
  std::vector<LayerTensors> layers;
  std::string embedding, head;  // the names of their tensors
};

// An error says what a pattern has found that cannot be placed so, and what can.
Result<PlacedTensors> PlaceByPatterns(const PlaceQuery& query);

}  // namespace celer
