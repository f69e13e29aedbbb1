#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt8(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kInt8>(p, stream);
}

}  // namespace celer::cuda::wide
