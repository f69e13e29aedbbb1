#include "kernels/moe/moe_step_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchBf16(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  return LaunchAs<Format::kBf16, 7>(e, shared_bytes, stream);
}

cudaError_t LaunchStepBf16(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  return LaunchStepAs<Format::kBf16, 7>(f, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
