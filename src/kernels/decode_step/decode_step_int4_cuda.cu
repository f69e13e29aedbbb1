#include "kernels/decode_step/decode_step_cuda.cuh"

namespace celer::cuda::step {

cudaError_t LaunchInt4(const StepParams& s, int shared_bytes, cudaStream_t stream) {
  return LaunchShape<Format::kInt4, 7, Format::kInt8, 7>(s, shared_bytes, stream);
}

}  // namespace celer::cuda::step
