// Which flash kernel runs: wgmma where there is any, else flash_attention.cuh.
#include "kernels/llm/attention/cuda/flash_attention.cuh"

namespace celer::cuda {
namespace attention {

cudaError_t LaunchFlashNarrow(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream);
cudaError_t LaunchFlashWide(const FlashAttentionArgs& args, dim3 grid, cudaStream_t stream);
bool FlashWarpgroupRuns(const FlashAttentionArgs& args);
cudaError_t LaunchFlashWarpgroup(const FlashAttentionArgs& args, cudaStream_t stream);

}  // namespace attention

bool FlashAttentionRuns(const DeviceKv& kv) {
  const bool narrow = kv.dtype == DType::kI8 || kv.dtype == DType::kFp8E4M3;
  return kv.head_dim <= (narrow ? 128 : 256) && kv.head_dim % 2 == 0;
}

cudaError_t LaunchFlashAttention(const FlashAttentionArgs& args, cudaStream_t stream) {
  using namespace attention;
  if (!FlashAttentionRuns(args.base.kv)) return cudaErrorInvalidValue;
  if (FlashWarpgroupRuns(args)) return LaunchFlashWarpgroup(args, stream);
  const dim3 grid(static_cast<unsigned>((args.longest + kTileQueries - 1) / kTileQueries),
                  static_cast<unsigned>(args.base.heads), static_cast<unsigned>(args.sequences));
  if (args.base.kv.head_dim > 128) return LaunchFlashWide(args, grid, stream);
  switch (args.base.kv.dtype) {
    case DType::kF16:
      return LaunchFlashType<__half>(args, grid, stream);
    case DType::kBf16:
      return LaunchFlashType<__nv_bfloat16>(args, grid, stream);
    default:
      return LaunchFlashNarrow(args, grid, stream);
  }
}

}  // namespace celer::cuda
