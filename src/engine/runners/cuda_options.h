// What the runners of a GPU make of the options.
#pragma once

#include "base/result.h"
#include "celer/options.h"
#include "models/cuda/decoder.h"

namespace celer {

// Without what depends on the model.
Result<CudaDecoderOptions> CudaOptionsFor(const EngineOptions& options, int device);
// Context and KV of that model.
Status FitCudaOptions(const EngineOptions& options, const DecoderConfig& config, CudaDecoderOptions* cuda);

}  // namespace celer
