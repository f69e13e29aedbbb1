#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kInt4>(p, stream);
}

}  // namespace celer::cuda::wide
