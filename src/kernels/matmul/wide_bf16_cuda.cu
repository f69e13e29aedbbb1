#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunBf16(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kBf16>(p, stream);
}

}  // namespace celer::cuda::wide
