#include "kernels/llm/embed/embed_cuda.h"
#include "kernels/shared/cuda/element.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

// Grid: (parts of a row, tokens).
__global__ void EmbedKernel(const __grid_constant__ EmbedArgs a) {
  // In this order: kernels that start early find the batch as the step in front left it.
  WaitForPrevious();
  LetNextStart();
  if (a.step && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.step += 1;
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= a.table.cols) return;
  const int token = __ldcg(a.tokens + blockIdx.y) - a.first_token;
  const bool has = token >= 0 && token < a.table.rows;
  float value = has ? Element(a.table, token, col) * a.scale : 0.0f;
  if (a.positions) {
    const int row = min(__ldcg(a.positions + blockIdx.y) + a.position_offset, a.position_table.rows - 1);
    value += Element(a.position_table, row, col);
  }
  a.out[static_cast<int64_t>(blockIdx.y) * a.table.cols + col] = value;
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream) {
  constexpr int kThreads = 128;
  return Launch(EmbedKernel,
                dim3(static_cast<unsigned>((args.table.cols + kThreads - 1) / kThreads),
                     static_cast<unsigned>(args.count)),
                dim3(kThreads), 0, stream, args);
}

}  // namespace celer::cuda
