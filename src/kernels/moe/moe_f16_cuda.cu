#include "kernels/moe/moe_step_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchF16(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  return LaunchAs<Format::kF16, 7>(e, shared_bytes, stream);
}

cudaError_t LaunchStepF16(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  return LaunchStepAs<Format::kF16, 7>(f, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
