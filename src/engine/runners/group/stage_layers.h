// Which layers each stage of a pipeline has.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "models/config/layer_range.h"

namespace celer {

// [stages], in order; decided by the configuration alone, so that every rank finds the same. Evenly by what one token
// multiplies, the head counted with the last layers, or as `split` says. A sentence if the model cannot be cut.
Result<std::vector<LayerRange>> StageLayers(const DecoderConfig& config, int stages,
                                            const std::vector<double>& split);

}  // namespace celer
