#include "kernels/cuda/launch.cuh"
#include "kernels/sample/greedy_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 32;

// Larger logit first, then the smaller token; NaN last. Never zero.
__device__ __forceinline__ uint64_t Key(float logit, int token) {
  uint32_t bits = __float_as_uint(logit);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (isnan(logit)) bits = 0;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

// Grid: (pieces of the vocabulary, rows). The block that ends last writes the token.
__global__ void __launch_bounds__(kThreads) GreedyKernel(const __grid_constant__ GreedyArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int row = blockIdx.y;
  const float* logits = a.logits + static_cast<int64_t>(row) * a.vocab;
  uint64_t best = 0;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < a.vocab; i += kThreads * kBlocks) {
    const uint64_t key = Key(__ldcg(logits + i), i);
    best = key > best ? key : best;
  }
  for (int x = 16; x > 0; x /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, best, x);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned long long*>(a.best + row), best);
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(a.tickets + row, 1) != kBlocks - 1) return;
  __threadfence();
  const uint64_t winner = atomicExch(reinterpret_cast<unsigned long long*>(a.best + row), 0ull);
  a.tickets[row] = 0;
  const int token = static_cast<int>(0xffffffffu - static_cast<uint32_t>(winner));
  a.tokens[row] = token;
  const int position = a.positions[row];
  a.positions[row] = position + 1;
  a.host_tokens[position % kHostSlots * a.host_stride + row] = token;
}

}  // namespace

cudaError_t LaunchGreedy(const GreedyArgs& args, cudaStream_t stream) {
  return Launch(GreedyKernel, dim3(kBlocks, static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream,
                args);
}

}  // namespace celer::cuda
