// The parts of a model as its configuration describes them, each asked for by name and shape.
#pragma once

#include <string>

#include "base/result.h"
#include "models/config/layer_range.h"
#include "models/load/model.h"
#include "weights/weight_plan.h"
#include "weights/weight_reader.h"

namespace celer {

// `embedding` is the name of the tensor to take for it. Of a part of the layers, those alone are read, with what is in
// front of the first layer of all and behind the last one.
Result<DecoderWeights> ReadDecoder(const DecoderConfig& config, bool gguf, const std::string& embedding,
                                   WeightReader& reader, const LayerRange& layers = {},
                                   bool experts_alone = false);
// The roles of tensors that are not projections.
WeightPlan::Roles DecoderRoles(const DecoderConfig& config, bool gguf, const std::string& embedding);

}  // namespace celer
