// The metadata of a GGUF file that ConfigFromGguf() reads a configuration from: what llama.cpp's converter writes for its
// architecture.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/gguf/gguf_writer.h"
#include "models/config/decoder_config.h"

namespace celer {

// "general.architecture" of a model's GGUF file; an error if the family has none that is read here.
Result<std::string> GgufArchitecture(const DecoderConfig& config);
// Whether rows of q and k stand in another order there: what a folder has as halves of a head, as neighbouring pairs.
bool GgufInterleaves(const DecoderConfig& config);

// "rope_freqs.weight": what GGUF divides the frequencies by, where config.json has Llama 3.1's scaling or says which pairs
// turn.
std::vector<float> GgufRopeFactors(const RopeConfig& rope);

// "general.architecture" and the keys behind its name. Which layers have what, and which biases there are, the tensors
// say.
Status SetGgufKeys(const DecoderConfig& config, GgufWriter* writer);

// What two configurations of one model say differently, as far as it changes what is computed: "sliding window is 4096
// and 0"; nullopt if nothing. Layouts that GgufInterleaves() explains are no difference.
std::optional<std::string> DifferenceOfModels(const DecoderConfig& a, const DecoderConfig& b);

}  // namespace celer
