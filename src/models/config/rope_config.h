// How a file says that positions rotate.
#pragma once

#include "base/result.h"
#include "io/json/json.h"
#include "models/config/decoder_config.h"
#include "models/load/gguf_reader.h"

namespace celer {

// "rope_theta" and "rope_scaling", or both in one object "rope_parameters" as newer files have it. Needs
// head_dim and max_positions.
Status ReadHfRope(const JsonFields& json, double default_theta, DecoderConfig* config);
// The same where layers with a sliding window have a rope of their own: newer files have an object for each kind of
// layer in "rope_parameters", older ones "rope_scaling", which is about the others alone. `theta` and `local_theta`
// are for files that do not say. Needs sliding_window, too.
Status ReadHfRopeOfKinds(const JsonFields& json, double theta, double local_theta, DecoderConfig* config);
// "llama.rope.*", and the factors of longrope, which stand in tensors.
constexpr const char* kGgufShortFactors = "rope_factors_short.weight";
constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
Status ReadGgufRope(const GgufReader& reader, DecoderConfig* config);

}  // namespace celer
