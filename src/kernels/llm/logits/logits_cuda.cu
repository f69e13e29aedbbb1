#include "kernels/llm/logits/logits_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // of a thread, kThreads apart

// Grid: (parts of a row, rows).
__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ FinishLogitsArgs a) {
  LetNextStart();
  WaitForPrevious();
  float* const row = a.logits + static_cast<int64_t>(blockIdx.y) * a.vocab;
  const int first = blockIdx.x * kThreads * kEach + threadIdx.x;
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    values[i] = first + i * kThreads < a.vocab ? __ldcg(row + first + i * kThreads) : 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = first + i * kThreads;
    if (at >= a.vocab) return;
    float logit = (values[i] + (a.bias ? __ldg(a.bias + at) : 0.0f)) * a.scale;
    if (a.softcap != 0) logit = a.softcap * tanhf(logit / a.softcap);
    row[at] = logit;
  }
}

}  // namespace

cudaError_t LaunchFinishLogits(const FinishLogitsArgs& args, cudaStream_t stream) {
  constexpr int kOfBlock = kThreads * kEach;
  return Launch(
      FinishKernel,
      dim3(static_cast<unsigned>((args.vocab + kOfBlock - 1) / kOfBlock), static_cast<unsigned>(args.rows)),
      dim3(kThreads), 0, stream, args);
}

}  // namespace celer::cuda
