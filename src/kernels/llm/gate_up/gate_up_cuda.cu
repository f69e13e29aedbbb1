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

}  // namespace

cudaError_t LaunchActivate(const float* gate, const float* up, float* out, int64_t n,
                           DeviceActivation activation, cudaStream_t stream) {
  return Launch(ActivateKernel, dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256), 0, stream, gate, up,
                out, n, activation);
}

}  // namespace celer::cuda
