#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunF32(const Params& p, cudaStream_t stream) {
  return RunFormat<Format::kF32>(p, stream);
}

}  // namespace celer::cuda::wide
