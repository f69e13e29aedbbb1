#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

__global__ void ActivateKernel(const float* gate, const float* up, float* out, int64_t n,
                               DeviceActivation activation) {
  LetNextStart();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = matvec::Activate(activation, __ldcg(gate + i)) * __ldcg(up + i);
}

// Grid: (parts of a row, tokens).
__global__ void ActivateRowsKernel(const __grid_constant__ ActivateArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= a.cols) return;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * a.cols + col;
  const float up = __ldcg(a.up + at) + (a.up_bias ? __ldg(a.up_bias + col) : 0.0f);
  const float gate = (a.gate ? __ldcg(a.gate + at) : 0.0f) + (a.gate_bias ? __ldg(a.gate_bias + col) : 0.0f);
  a.out[at] =
      a.gate ? matvec::ActivateMul(a.activation, a.limit, gate, up) : matvec::Activate(a.activation, up);
}

}  // namespace

cudaError_t LaunchActivateRows(const ActivateArgs& args, cudaStream_t stream) {
  return Launch(ActivateRowsKernel,
                dim3(static_cast<unsigned>((args.cols + 255) / 256), static_cast<unsigned>(args.tokens)),
                dim3(256), 0, stream, args);
}

cudaError_t LaunchActivate(const float* gate, const float* up, float* out, int64_t n,
                           DeviceActivation activation, cudaStream_t stream) {
  return Launch(ActivateKernel, dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256), 0, stream, gate, up,
                out, n, activation);
}

}  // namespace celer::cuda
