#include "kernels/attention/attention_unit_kernel.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchFp8(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  return LaunchType<__nv_fp8_e4m3>(a, b, stream);
}

}  // namespace celer::cuda::attention
