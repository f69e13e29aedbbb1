#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::matvec {

cudaError_t LaunchF16(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  return p.a.tokens <= 4 ? LaunchKernel<Format::kF16, 1, 7>(p, blocks, shared_bytes, stream)
                         : LaunchKernel<Format::kF16, 2, 7>(p, blocks, shared_bytes, stream);
}

}  // namespace celer::cuda::matvec
