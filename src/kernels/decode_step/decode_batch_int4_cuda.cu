#include "kernels/decode_step/decode_batch_cuda.cuh"

namespace celer::cuda::batch {

cudaError_t LaunchInt4(const BatchParams& b, const float* norm, int shared_bytes, cudaStream_t stream) {
  return LaunchFormat<Format::kInt4>(b, norm, shared_bytes, stream);
}

}  // namespace celer::cuda::batch
