#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::matvec {

cudaError_t LaunchInt4(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  if (p.group_shift == 7)
    return p.a.tokens <= 4 ? LaunchKernel<Format::kInt4, 1, 7>(p, blocks, shared_bytes, stream)
                           : LaunchKernel<Format::kInt4, 2, 7>(p, blocks, shared_bytes, stream);
  return p.a.tokens <= 4 ? LaunchKernel<Format::kInt4, 1, 0>(p, blocks, shared_bytes, stream)
                         : LaunchKernel<Format::kInt4, 2, 0>(p, blocks, shared_bytes, stream);
}

}  // namespace celer::cuda::matvec
