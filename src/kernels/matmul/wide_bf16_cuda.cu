#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda::wide {

cudaError_t RunBf16(const WideArgs& args, cudaStream_t stream) {
  return RunFormat<Format::kBf16>(args, stream);
}

}  // namespace celer::cuda::wide
