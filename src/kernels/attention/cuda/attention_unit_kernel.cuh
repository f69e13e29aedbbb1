// The kernel around attention_unit.cuh, one instance per type of the KV and width of its heads.
#pragma once

#include <algorithm>

#include "kernels/attention/cuda/attention_unit.cuh"
#include "kernels/cuda/launch.cuh"

namespace celer::cuda::attention {

// Query heads of one kv head that go together, and how many such bunches there are.
struct Bunches {
  int at_once, columns;
};
inline Bunches BunchesOf(int heads, int kv_heads) {
  const int group = heads / kv_heads, batches = (group + 7) / 8;
  return {(group + batches - 1) / batches, kv_heads * batches};
}
// A few sequences with few KV heads: what counts is how soon the memory is busy. Every multiprocessor has two
// blocks then, each with a deep ring, and splits are short.
constexpr bool FewColumns(int columns) {
  return columns < 16;
}
constexpr bool FewUnits(int tokens, int columns) {
  return tokens <= 4 && FewColumns(columns);
}

// Grid: as many blocks as run at once, each taking every gridDim-th unit: tokens, splits and
// columns, columns fastest, so that neighbours read neighbouring memory.
template <class T, int D, bool kMany, bool kDeep>
__global__ void __launch_bounds__(kThreads, kDeep ? 2 : 4)
    UnitKernel(const __grid_constant__ DeviceAttentionArgs a, int at_once, int columns) {
  extern __shared__ __align__(128) char memory[];
  __shared__ Shared shared;
  __shared__ int starts[kAttentionTokens + 1];  // splits of the tokens in front
  LetNextStart();
  if (!a.decode) WaitForPrevious();
  const int count = a.batch.count, lane = threadIdx.x;
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < count; first += 32) {
      int sum = first + lane < count ? KeysOf(a, first + lane, a.splits).active : 0;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += left;
      }
      if (first + lane < count) starts[first + lane + 1] = before + sum;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) starts[0] = 0;
  }
  __syncthreads();
  const int all = starts[count] * columns;
  int token = 0;
  for (int unit = blockIdx.x; unit < all; unit += gridDim.x) {
    const int index = unit / columns;
    while (starts[token + 1] <= index) ++token;
    Attend<T, D, kMany, kDeep>(a, at_once, unit % columns, columns, index - starts[token], a.splits, token,
                               KeysOf(a, token, a.splits), threadIdx.x, memory, shared,
                               [] { __syncthreads(); });
    __syncthreads();
  }
}

template <class T, int D, bool kMany, bool kDeep>
cudaError_t LaunchUnits(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  constexpr int kRing = Worker<T, D, kMany, kDeep>::kRingBytes;
  constexpr auto kKernel = UnitKernel<T, D, kMany, kDeep>;
  static PerDevice<int> at_once;  // blocks that run at the same time
  const int most = at_once.Get([] {
    int each = 1;
    AllowShared<kKernel, kRing>();
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kKernel, kThreads, kRing);
    return std::max(each, 1) * Multiprocessors();
  });
  const int64_t units = static_cast<int64_t>(b.columns) * a.splits * a.batch.count;
  return LaunchLarge<kKernel, kRing>(dim3(static_cast<unsigned>(std::min<int64_t>(units, most))),
                                     dim3(kThreads), kRing, stream, a, b.at_once, b.columns);
}

template <class T, int D>
cudaError_t LaunchWidth(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  if (FewUnits(a.batch.count, b.columns) && !a.steady)
    return b.at_once > 4 ? LaunchUnits<T, D, true, true>(a, b, stream)
                         : LaunchUnits<T, D, false, true>(a, b, stream);
  return b.at_once > 4 ? LaunchUnits<T, D, true, false>(a, b, stream)
                       : LaunchUnits<T, D, false, false>(a, b, stream);
}

template <class T>
cudaError_t LaunchWidthOf(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream) {
  if (a.kv.padded_dim <= 64) return LaunchWidth<T, 64>(a, b, stream);
  if (a.kv.padded_dim <= 128) return LaunchWidth<T, 128>(a, b, stream);
  if (a.kv.padded_dim <= 256) return LaunchWidth<T, 256>(a, b, stream);
  return cudaErrorInvalidValue;
}
// LaunchWidthOf(), compiled in one file per type of the KV: attention_kv_cuda.cu.in.
template <DType kType>
cudaError_t LaunchType(const DeviceAttentionArgs& a, const Bunches& b, cudaStream_t stream);

}  // namespace celer::cuda::attention
