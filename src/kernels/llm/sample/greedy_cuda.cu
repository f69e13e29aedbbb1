#include "kernels/llm/sample/greedy_cuda.h"
#include "kernels/llm/sample/greedy_key.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;

// Grid: (parts of the vocabulary, rows). The block that ends last writes the token.
__global__ void __launch_bounds__(kThreads) GreedyKernel(const __grid_constant__ GreedyArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int row = blockIdx.y;
  const float* logits = a.logits + static_cast<int64_t>(row) * a.vocab;
  uint64_t best = 0;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < a.vocab; i += kThreads * kBlocks) {
    const uint64_t key = GreedyKey(__ldcg(logits + i), i);
    best = key > best ? key : best;
  }
  best = WarpBest(best);
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned long long*>(a.best + row), best);
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(a.tickets + row, 1) != kBlocks - 1) return;
  __threadfence();
  const uint64_t winner = atomicExch(reinterpret_cast<unsigned long long*>(a.best + row), 0ull);
  a.tickets[row] = 0;
  TakeGreedy(a.to, row, a.to.positions[row], winner);
}

}  // namespace

cudaError_t LaunchGreedy(const GreedyArgs& args, cudaStream_t stream) {
  return Launch(GreedyKernel, dim3(kBlocks, static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream,
                args);
}

}  // namespace celer::cuda
