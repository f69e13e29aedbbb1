// RMSNorm and LayerNorm of rows on the GPU, where no product takes them in.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/llm/matmul/cuda/wgmma/wgmma_activations.h"

namespace celer::cuda {

struct NormArgs {
  const float* x = nullptr;       // [tokens, cols]
  const int32_t* rows = nullptr;  // which rows of x, or null for 0 .. tokens - 1
  int tokens = 0;
  int cols = 0;
  bool layer = false;             // LayerNorm
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols], of LayerNorm; may be none
  float eps = 1e-5f;
  bool add = false;      // to out: the norm of what a branch adds to the residual
  float* out = nullptr;  // [tokens, cols]; may be x
};
// A row with an infinity, a NaN or squares beyond f32 becomes NaN.
cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream);

// x += RMSNorm of a branch, and x under the RMSNorm in front of the next product, in one kernel.
struct AddNormedArgs {
  const float* branch = nullptr;  // [tokens, cols]
  const float* weight = nullptr;  // [cols]
  float eps = 1e-5f;
  float* x = nullptr;  // [tokens, cols]
  int tokens = 0;
  int cols = 0;
  WgmmaActivations next;
  const float* next_weight = nullptr;  // [cols]; none: x as it is
  float next_eps = 1e-5f;
};
bool AddNormedRuns(int64_t cols);
cudaError_t LaunchAddNormed(const AddNormedArgs& args, cudaStream_t stream);

// x[t, i] += bias[i].
cudaError_t LaunchAddBias(float* x, const float* bias, int tokens, int cols, cudaStream_t stream);

}  // namespace celer::cuda
