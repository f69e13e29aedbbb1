#include "kernels/decode_step/decode_step_cuda.cuh"

namespace celer::cuda::step {

cudaError_t LaunchBf16(const StepParams& s, int shared_bytes, cudaStream_t stream) {
  return LaunchShape<Format::kBf16, 0, Format::kBf16, 0>(s, shared_bytes, stream);
}

}  // namespace celer::cuda::step
