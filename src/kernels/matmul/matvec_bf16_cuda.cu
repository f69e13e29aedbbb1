#include "kernels/matmul/matvec_cuda.cuh"

namespace celer::cuda::matvec {

cudaError_t LaunchBf16(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  return p.a.tokens <= 4 ? LaunchKernel<Format::kBf16, 1, 7>(p, blocks, shared_bytes, stream)
                         : LaunchKernel<Format::kBf16, 2, 7>(p, blocks, shared_bytes, stream);
}

}  // namespace celer::cuda::matvec
