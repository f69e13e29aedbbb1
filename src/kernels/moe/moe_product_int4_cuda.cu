#include "kernels/moe/moe_product_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchInt4(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  if (e.p.group_shift == 7) return LaunchAs<Format::kInt4, 7>(e, shared_bytes, stream);
  return LaunchAs<Format::kInt4, 0>(e, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
