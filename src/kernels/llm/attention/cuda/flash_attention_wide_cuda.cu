// Flash attention with heads of up to 256; a file of its own, so that it compiles beside the others.
#include "kernels/llm/attention/cuda/flash_attention.cuh"

namespace celer::cuda::attention {

cudaError_t LaunchFlashWide(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream) {
  return args.base.kv.dtype == DType::kBf16 ? LaunchShape<__nv_bfloat16, 256>(args, grid, stream)
                                            : LaunchShape<__half, 256>(args, grid, stream);
}

}  // namespace celer::cuda::attention
