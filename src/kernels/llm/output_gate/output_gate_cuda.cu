#include "kernels/llm/output_gate/output_gate_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: (parts of a token, tokens).
__global__ void __launch_bounds__(kThreads) OutputGateKernel(const __grid_constant__ OutputGateArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int i = blockIdx.x * kThreads + threadIdx.x, token = blockIdx.y;
  if (i >= a.heads * a.head_dim) return;
  float* const x = a.x + static_cast<int64_t>(token) * a.heads * a.head_dim + i;
  const float gate =
      __ldcg(a.gate + token * a.token_stride + i / a.head_dim * a.head_stride + i % a.head_dim);
  *x = __fdiv_rn(__ldcg(x), 1.0f + expf(-gate));
}

}  // namespace

cudaError_t LaunchOutputGate(const OutputGateArgs& args, cudaStream_t stream) {
  const int width = args.heads * args.head_dim;
  return Launch(
      OutputGateKernel,
      dim3(static_cast<unsigned>((width + kThreads - 1) / kThreads), static_cast<unsigned>(args.tokens)),
      dim3(kThreads), 0, stream, args);
}

}  // namespace celer::cuda
