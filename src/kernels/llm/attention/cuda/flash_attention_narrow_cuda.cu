// Flash attention over a KV of 8 bits; a file of its own, so that it compiles beside the others.
#include "kernels/llm/attention/cuda/flash_attention.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchFlashNarrow(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream) {
  switch (args.base.kv.dtype) {
    case DType::kI8:
      return LaunchFlashType<int8_t>(args, grid, stream);
    case DType::kFp8E4M3:
      return LaunchFlashType<__nv_fp8_e4m3>(args, grid, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda::attention
