#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunBf16(std::span<const WideArgs> chain, cudaStream_t stream) {
  return RunFormat<Format::kBf16>(chain, stream);
}

}  // namespace celer::cuda::wide
