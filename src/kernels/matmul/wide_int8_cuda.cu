#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt8(const WideArgs& args, cudaStream_t stream) {
  return RunFormat<Format::kInt8>(args, stream);
}

}  // namespace celer::cuda::wide
