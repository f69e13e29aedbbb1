// Models by name: the configurations that they were published with, for random weights and estimates.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "models/config/decoder_config.h"

namespace celer {

// Of a name of ModelPresetNames(). One that has no configuration in presets.json is a Llama-like model of its shape.
Result<DecoderConfig> FindConfigPreset(std::string_view name);

// Its config.json; nullopt for a name without one.
std::optional<nlohmann::ordered_json> FindPresetJson(std::string_view name);

}  // namespace celer
