#include "kernels/attention/attention_unit_kernel.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchI8(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  return LaunchType<int8_t>(a, b, stream);
}

}  // namespace celer::cuda::attention
