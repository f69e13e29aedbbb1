#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4(const WideArgs& args, cudaStream_t stream) {
  return RunFormat<Format::kInt4>(args, stream);
}

}  // namespace celer::cuda::wide
