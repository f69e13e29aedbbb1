#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunF32(std::span<const WideArgs> chain, cudaStream_t stream) {
  return RunFormat<Format::kF32>(chain, stream);
}

}  // namespace celer::cuda::wide
