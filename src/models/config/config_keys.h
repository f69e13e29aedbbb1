// How each key of a configuration is handled: read, ignored because it changes nothing, or rejected. An
// unknown key gives a warning, so that fields of newer versions are noticed.
#pragma once

#include "base/result.h"
#include "io/json/json.h"
#include "models/config/decoder_config.h"
#include "models/load/gguf_reader.h"

namespace celer {

// Of a config.json of config->family. An error for what changes the result and is not implemented, else
// warnings in config->warnings.
Status CheckHfKeys(const JsonFields& json, DecoderConfig* config);
// The same for the metadata of an architecture in a GGUF file: "llama.*".
Status CheckGgufKeys(const GgufReader& reader, DecoderConfig* config);

}  // namespace celer
