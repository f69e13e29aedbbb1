// The keys of a config.json about rope, for HfKeys().
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "models/config/decoder_config.h"

namespace celer {

// Those that the family's class in transformers reads; an error if rope.freq_factors follow from none.
Result<nlohmann::ordered_json> HfRopeKeys(const DecoderConfig& config, const std::string& family);

// Of the first layer without a window.
int64_t HeadDimOfFullLayers(const DecoderConfig& config);

}  // namespace celer
