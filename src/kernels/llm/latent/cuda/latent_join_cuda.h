// The splits of attention together, for what reads the latent space beside LaunchLatentValues().
#pragma once

#include "kernels/llm/latent/cuda/latent_cuda.h"

namespace celer::cuda {

// Into `joined`; weights and `out` are not used.
cudaError_t LaunchLatentJoin(const LatentValuesArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
