// What those need who read some layers of a file (predictor.h).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "models/load/model.h"
#include "weights/weight_reader.h"

namespace celer {

Result<LayerWeights> LoadLayer(const DecoderConfig& config, bool gguf, int64_t layer, WeightReader& reader);

// What one decode step must read of such weights.
int64_t ActiveBytes(const DecoderConfig& config, const DecoderWeights& weights);

}  // namespace celer
