// What output_gate.h does, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

struct OutputGateArgs {
  float* x = nullptr;           // [tokens, heads, head_dim]
  const float* gate = nullptr;  // likewise, with strides in floats
  int64_t token_stride = 0, head_stride = 0;
  int tokens = 0, heads = 0, head_dim = 0;
};

cudaError_t LaunchOutputGate(const OutputGateArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
