#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::matvec {

cudaError_t LaunchInt4Wide(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  if (p.group_shift == 4)
    return p.a.tokens <= 4 ? LaunchKernel<Format::kInt4Wide, 1, 4>(p, blocks, shared_bytes, stream)
                           : LaunchKernel<Format::kInt4Wide, 2, 4>(p, blocks, shared_bytes, stream);
  return p.a.tokens <= 4 ? LaunchKernel<Format::kInt4Wide, 1, 5>(p, blocks, shared_bytes, stream)
                         : LaunchKernel<Format::kInt4Wide, 2, 5>(p, blocks, shared_bytes, stream);
}

}  // namespace celer::cuda::matvec
