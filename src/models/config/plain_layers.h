// Which models have layers that everything here runs: the CPU's forward pass knows more forms of a layer than the GPU's and
// the calibration of the quantizer.
#pragma once

#include "models/config/decoder_config.h"

namespace celer {

// What the layers, the embeddings or the head have beyond those of Llama, Mistral and Qwen up to 3, biases aside:
// "a softcap on attention scores". nullptr: nothing.
const char* BeyondPlainLayers(const DecoderConfig& config);
// Whether there is nothing of that kind, biases included: a GPU runs all other models by its strategy `general`.
bool HasPlainLayers(const DecoderConfig& config);

}  // namespace celer
