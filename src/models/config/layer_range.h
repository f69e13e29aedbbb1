// Some consecutive layers of a model, as a model of its own: what a device has whose neighbours run the others.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "models/config/decoder_config.h"

namespace celer {

struct LayerRange {
  int64_t first = 0;
  int64_t count = -1;  // -1: all from the first on

  int64_t end() const { return first + count; }
};

// The configuration of these layers alone. The first layer of all has the embedding in front of it, and the last one the
// output head behind it; neither is said here.
DecoderConfig SliceLayers(const DecoderConfig& config, const LayerRange& range);

// A sentence if the layers of a model cannot be on several devices: some layers need more of others than the residual
// that they leave.
Status CheckLayersPart(const DecoderConfig& config);

}  // namespace celer
