// All decisions about a network in a JSON file: with it the same quantized network is built again, byte for
// byte, without the samples.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "quantize/network/quantizer.h"

namespace celer::ptq {

struct NetworkRecipe {
  NetworkOptions options;
  FloatLayers floats;
  // By the names of values, and of layers.
  std::map<std::string, Range> ranges;
  std::map<std::string, std::vector<float>> means, peaks;

  static NetworkRecipe Of(const NetworkQuantizer& quantizer, const FloatLayers& floats);
  // An error about a value or layer that the network does not have.
  Result<Calibration> For(const NetworkQuantizer& quantizer) const;

  std::string ToJson() const;
  static Result<NetworkRecipe> Read(const std::filesystem::path& path);
};

}  // namespace celer::ptq
