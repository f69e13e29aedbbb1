#include "kernels/moe/moe_product_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchF32(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  return LaunchAs<Format::kF32, 7>(e, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
