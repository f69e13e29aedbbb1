// The weights of recurrent layers by the names they have in each container.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "models/load/model.h"
#include "weights/weight_reader.h"

namespace celer {

// Of layer `i`.
Status LoadRecurrent(const DecoderConfig& config, bool gguf, int64_t i, WeightReader& reader,
                     LayerWeights* layer);

}  // namespace celer
