#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4(std::span<const WideArgs> chain, cudaStream_t stream) {
  return RunFormat<Format::kInt4>(chain, stream);
}

}  // namespace celer::cuda::wide
