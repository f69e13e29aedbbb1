// act(gate) * up where the two came out of separate products.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"

namespace celer::cuda {

// The same with biases, a limit or without a gate.
struct ActivateArgs {
  const float* gate = nullptr;                           // [tokens, cols]; none: out = act(up)
  const float* up = nullptr;                             // [tokens, cols]
  const float *gate_bias = nullptr, *up_bias = nullptr;  // [cols]; may be none
  int tokens = 0;
  int cols = 0;
  DeviceActivation activation = DeviceActivation::kSilu;
  float limit = 0;       // of a clamped SwiGLU (activation.h), instead of the activation; 0: none
  float* out = nullptr;  // [tokens, cols]; may be gate or up
};
cudaError_t LaunchActivateRows(const ActivateArgs& args, cudaStream_t stream);

// out[i] = act(gate[i]) * up[i] for i in [0, n); out may be gate.
cudaError_t LaunchActivate(const float* gate, const float* up, float* out, int64_t n,
                           DeviceActivation activation, cudaStream_t stream);

}  // namespace celer::cuda
