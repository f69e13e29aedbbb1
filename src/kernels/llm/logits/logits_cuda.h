// What the logits of some families need behind the product with the output head.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

// As in LogitsArgs: out = cap * tanh(scale * (out + bias) / cap), without a cap scale * (out + bias).
struct FinishLogitsArgs {
  float* logits = nullptr;  // [rows, vocab]
  int rows = 0;
  int vocab = 0;
  const float* bias = nullptr;  // [vocab]; may be none
  float scale = 1;
  float softcap = 0;  // 0: none
};
cudaError_t LaunchFinishLogits(const FinishLogitsArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
