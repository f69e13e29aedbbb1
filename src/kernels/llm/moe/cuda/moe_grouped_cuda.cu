// The host side of moe_grouped_cuda.cuh.
#include "kernels/llm/moe/cuda/moe_grouped_cuda.cuh"

namespace celer::cuda {

bool MoeGroupedRuns(const DeviceMatrix& gate_up, const DeviceMatrix& down) {
  return moe::HasGrouped(gate_up.format) && moe::HasGrouped(down.format);
}

cudaError_t LaunchMoeGrouped(const MoeGroupedArgs& args, cudaStream_t stream) {
  return WithFormat(args.w.first.format,
                    [&]<Format F>() { return moe::LaunchGroupedFormat<F>(args, stream); });
}

}  // namespace celer::cuda
