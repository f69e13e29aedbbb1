#include "kernels/attention/attention_unit_kernel.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchBf16(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  return LaunchType<__nv_bfloat16>(a, b, stream);
}

}  // namespace celer::cuda::attention
