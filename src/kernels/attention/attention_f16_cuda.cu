#include "kernels/attention/attention_unit_kernel.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchF16(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  return LaunchType<__half>(a, b, stream);
}

}  // namespace celer::cuda::attention
