#include "kernels/moe/moe_step_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchInt8(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  if (e.p.group_shift == 4) return LaunchAs<Format::kInt8, 4>(e, shared_bytes, stream);
  return LaunchAs<Format::kInt8, 0>(e, shared_bytes, stream);
}

cudaError_t LaunchStepInt8(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  if (f.part[0].p.group_shift == 4) return LaunchStepAs<Format::kInt8, 4>(f, shared_bytes, stream);
  return LaunchStepAs<Format::kInt8, 0>(f, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
