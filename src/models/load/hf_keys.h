// A config.json that ConfigFromHf() reads a configuration from: the keys of the model's class in transformers. The other
// direction of gguf_keys.h.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "models/config/decoder_config.h"

namespace celer {

// Of a configuration out of a GGUF file, with the numbers of "rope_freqs.weight" in rope.freq_factors. Without types and
// special tokens. An error for what no class has.
Result<nlohmann::ordered_json> HfKeys(const DecoderConfig& config);

}  // namespace celer
