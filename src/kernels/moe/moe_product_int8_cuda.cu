#include "kernels/moe/moe_product_cuda.cuh"

namespace celer::cuda::moe {

cudaError_t LaunchInt8(const ProductParams& e, int shared_bytes, cudaStream_t stream) {
  if (e.p.group_shift == 4) return LaunchAs<Format::kInt8, 4>(e, shared_bytes, stream);
  return LaunchAs<Format::kInt8, 0>(e, shared_bytes, stream);
}

}  // namespace celer::cuda::moe
