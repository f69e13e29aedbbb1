#include "kernels/moe/moe_step_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchInt4(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  if (e.p.group_shift == 7) return LaunchAs<Format::kInt4, 7>(e, shared_bytes, stream);
  return LaunchAs<Format::kInt4, 0>(e, shared_bytes, stream);
}

cudaError_t LaunchStepInt4(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  if (f.part[0].p.group_shift == 7) return LaunchStepAs<Format::kInt4, 7>(f, shared_bytes, stream);
  return LaunchStepAs<Format::kInt4, 0>(f, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
