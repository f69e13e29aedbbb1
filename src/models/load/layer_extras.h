// The weights of what few models have in each layer: embeddings of its own, a scale, experts beside a dense block,
// several residual streams and a linear branch beside attention.
#pragma once

#include <string>

#include "base/result.h"
#include "models/load/model.h"
#include "weights/weight_reader.h"

namespace celer {

// `prefix` is the layer's, "model.layers.3." or "blk.3.".
Status LoadLayerExtras(const DecoderConfig& config, bool gguf, const std::string& prefix,
                       WeightReader& reader, LayerWeights* layer);
// Of the model outside its layers.
Status LoadModelExtras(const DecoderConfig& config, bool gguf, WeightReader& reader, DecoderWeights* weights);
void AddExtraRoles(const DecoderConfig& config, bool gguf, WeightPlan::Roles* roles);
// The name of the embedding of each layer's own.
const char* PerLayerEmbeddingName(bool gguf);

}  // namespace celer
