#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunInt4Wide(std::span<const WideArgs> chain, cudaStream_t stream) {
  return RunFormat<Format::kInt4Wide>(chain, stream);
}

}  // namespace celer::cuda::wide
