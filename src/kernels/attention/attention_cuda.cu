#include "kernels/attention/attention_body.cuh"
#include "kernels/cuda/launch.cuh"

namespace celer::cuda {
namespace {

using namespace attention;

// Grid: (kv heads x batches of G query heads, splits, tokens).
template <class T, int L, int G>
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(const __grid_constant__ DeviceAttentionArgs a, int batches) {
  __shared__ Shared<L, G> shared;
  LetNextStart();
  WaitForPrevious();
  Attend<T, L, G>(a, batches, blockIdx.x, gridDim.x, blockIdx.y, gridDim.y, blockIdx.z, threadIdx.x, shared,
                  [] { __syncthreads(); });
}

int QueriesAtOnce(int group) {
  return group == 1 ? 1 : group <= 4 ? 4 : 8;
}
int Batches(int heads, int kv_heads) {
  const int group = heads / kv_heads, at_once = QueriesAtOnce(group);
  return (group + at_once - 1) / at_once;
}

template <class T, int L>
cudaError_t LaunchLanes(const DeviceAttentionArgs& a, dim3 grid, int batches, cudaStream_t stream) {
  switch (QueriesAtOnce(a.heads / a.kv.kv_heads)) {
    case 1:
      return Launch(AttentionKernel<T, L, 1>, grid, dim3(kThreads), 0, stream, a, batches);
    case 4:
      return Launch(AttentionKernel<T, L, 4>, grid, dim3(kThreads), 0, stream, a, batches);
    default:
      return Launch(AttentionKernel<T, L, 8>, grid, dim3(kThreads), 0, stream, a, batches);
  }
}

template <class T>
cudaError_t LaunchType(const DeviceAttentionArgs& a, dim3 grid, int batches, cudaStream_t stream) {
  if (a.kv.padded_dim <= 64) return LaunchLanes<T, 8>(a, grid, batches, stream);
  if (a.kv.padded_dim <= 128) return LaunchLanes<T, 16>(a, grid, batches, stream);
  if (a.kv.padded_dim <= 256) return LaunchLanes<T, 32>(a, grid, batches, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

int AttentionSplits(int heads, int kv_heads) {
  const int blocks = kv_heads * Batches(heads, kv_heads);
  const int splits = 512 / blocks;
  return splits < 1 ? 1 : splits > 64 ? 64 : splits;
}

int64_t AttentionPartialFloats(int tokens, int heads, int kv_heads, int padded_dim) {
  const int64_t slots =
      static_cast<int64_t>(kv_heads) * Batches(heads, kv_heads) * AttentionSplits(heads, kv_heads);
  return tokens * slots * QueriesAtOnce(heads / kv_heads) * (padded_dim + 2);
}

cudaError_t LaunchAttention(const DeviceAttentionArgs& args, cudaStream_t stream) {
  const int batches = Batches(args.heads, args.kv.kv_heads);
  const dim3 grid(static_cast<unsigned>(args.kv.kv_heads * batches), static_cast<unsigned>(args.splits),
                  static_cast<unsigned>(args.batch.count));
  return args.kv.dtype == DType::kBf16 ? LaunchType<__nv_bfloat16>(args, grid, batches, stream)
                                       : LaunchType<__half>(args, grid, batches, stream);
}

}  // namespace celer::cuda
