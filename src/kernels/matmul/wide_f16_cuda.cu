#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunF16(const WideArgs& args, cudaStream_t stream) {
  return RunFormat<Format::kF16>(args, stream);
}

}  // namespace celer::cuda::wide
