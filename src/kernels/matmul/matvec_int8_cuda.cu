#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::matvec {

cudaError_t LaunchInt8(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  if (p.group_shift == 7)
    return p.a.tokens <= 4 ? LaunchKernel<Format::kInt8, 1, 7>(p, blocks, shared_bytes, stream)
                           : LaunchKernel<Format::kInt8, 2, 7>(p, blocks, shared_bytes, stream);
  if (p.group_shift == 4)
    return p.a.tokens <= 4 ? LaunchKernel<Format::kInt8, 1, 4>(p, blocks, shared_bytes, stream)
                           : LaunchKernel<Format::kInt8, 2, 4>(p, blocks, shared_bytes, stream);
  return p.a.tokens <= 4 ? LaunchKernel<Format::kInt8, 1, 0>(p, blocks, shared_bytes, stream)
                         : LaunchKernel<Format::kInt8, 2, 0>(p, blocks, shared_bytes, stream);
}

}  // namespace celer::cuda::matvec
