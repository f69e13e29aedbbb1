#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunF16(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kF16>(p, stream);
}

}  // namespace celer::cuda::wide
