#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4Wide(const WideArgs& args, cudaStream_t stream) {
  return RunFormat<Format::kInt4Wide>(args, stream);
}

}  // namespace celer::cuda::wide
