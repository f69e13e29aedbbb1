// act(gate) * up where the two came out of separate products.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"

namespace celer::cuda {

// out[i] = act(gate[i]) * up[i] for i in [0, n); out may be gate.
cudaError_t LaunchActivate(const float* gate, const float* up, float* out, int64_t n,
                           DeviceActivation activation, cudaStream_t stream);

}  // namespace celer::cuda
