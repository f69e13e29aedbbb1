#include "kernels/moe/moe_step_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchInt4Wide(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  if (e.p.group_shift == 4) return LaunchAs<Format::kInt4Wide, 4>(e, shared_bytes, stream);
  return LaunchAs<Format::kInt4Wide, 5>(e, shared_bytes, stream);
}

cudaError_t LaunchStepInt4Wide(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  if (f.part[0].p.group_shift == 4) return LaunchStepAs<Format::kInt4Wide, 4>(f, shared_bytes, stream);
  return LaunchStepAs<Format::kInt4Wide, 5>(f, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
