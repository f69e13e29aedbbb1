#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunF16(std::span<const WideArgs> chain, cudaStream_t stream) {
  return RunFormat<Format::kF16>(chain, stream);
}

}  // namespace celer::cuda::wide
