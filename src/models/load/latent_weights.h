// The weights of multi-head latent attention by the names they have in each container.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "models/load/model.h"
#include "weights/weight_plan.h"
#include "weights/weight_reader.h"

namespace celer {

// `prefix` is that of the layer: "model.layers.0." or "blk.0.".
Status LoadLatent(const DecoderConfig& config, bool gguf, const std::string& prefix, WeightReader& reader,
                  LayerWeights* layer);
void AddLatentRoles(const std::string& prefix, bool gguf, WeightPlan::Roles* roles);

}  // namespace celer
