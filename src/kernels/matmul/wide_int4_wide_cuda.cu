#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4Wide(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kInt4Wide>(p, stream);
}

}  // namespace celer::cuda::wide
