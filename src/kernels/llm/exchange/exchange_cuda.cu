#include <algorithm>

#include "kernels/llm/exchange/exchange_cuda.h"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/system_scope.cuh"

namespace celer::cuda {
namespace {

using system_scope::Load;
using system_scope::LoadAcquire;
using system_scope::StoreRelease;

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Waits until the same block of `peer` has come to exchange number `now`; false if it gave up.
__device__ bool Await(const ExchangeGroup& g, int peer, uint32_t now) {
  constexpr uint32_t kPolls = 1024;  // from one look at the clock and at the host's memory to the next
  const uint32_t* const from = g.arrived[g.rank] + peer * kExchangeBlocks + blockIdx.x;
  uint64_t begin = 0;
  for (uint32_t polls = 0;; ++polls) {
    // Counts wrap around.
    if (static_cast<int32_t>(LoadAcquire(from) - now) >= 0) return true;
    if (polls % kPolls != kPolls - 1) continue;
    if (Load(g.failed) != 0) return false;
    if (begin == 0) begin = Nanoseconds();
    const bool late = Nanoseconds() - begin > g.watchdog_ns;
    if (!late && Load(g.aborted) == 0) continue;
    if (late) StoreRelease(g.missing + g.rank, static_cast<uint32_t>(peer) + 1);
    StoreRelease(g.failed, 1);
    return false;
  }
}

// Every block by itself: what kernels in front of this one wrote is there for all of it. Returns for the whole block
// whether all have come.
__device__ bool Meet(const ExchangeGroup& g) {
  WaitForPrevious();
  if (g.early) LetNextStart();
  const int peer = static_cast<int>(threadIdx.x);
  uint32_t now = 0;
  bool here = true;
  if (peer < g.ranks) {
    now = g.counts[blockIdx.x] + 1;
    here = Load(g.failed) == 0;
    if (here && peer != g.rank) {
      StoreRelease(g.arrived[peer] + g.rank * kExchangeBlocks + blockIdx.x, now);
      here = Await(g, peer, now);
    }
  }
  const bool all = __syncthreads_and(here);
  if (peer == 0) g.counts[blockIdx.x] = now;
  return all;
}

__device__ __forceinline__ void Add(float4& sum, const float4& v) {
  sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}

// Grid: as many blocks as there is work for, kExchangeBlocks at most, striding over quads.
template <int kRanks>
__global__ void __launch_bounds__(kExchangeThreads) AllReduceKernel(const __grid_constant__ AllReduceArgs a) {
  if (!Meet(a.group)) return;
  const int64_t quads = a.count / 4, step = static_cast<int64_t>(gridDim.x) * blockDim.x,
                first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < quads; i += step) {
    float4 v[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) v[r] = Load(reinterpret_cast<const float4*>(a.parts[r]) + i);
    float4* const to = reinterpret_cast<float4*>(a.out) + i;
    float4 sum = v[0];
#pragma unroll
    for (int r = 1; r < kRanks; ++r) Add(sum, v[r]);
    if (a.add) {
      float4 before = *to;
      Add(before, sum);
      sum = before;
    }
    *to = sum;
  }
  for (int64_t i = quads * 4 + first; i < a.count; i += step) {
    float sum = Load(a.parts[0] + i);
#pragma unroll
    for (int r = 1; r < kRanks; ++r) sum += Load(a.parts[r] + i);
    a.out[i] = a.add ? a.out[i] + sum : sum;
  }
}

__global__ void __launch_bounds__(kExchangeThreads)
    GatherColumnsKernel(const __grid_constant__ GatherColumnsArgs a) {
  if (!Meet(a.group) || !a.out) return;
  int64_t width = 0, begin = 0;
  for (int r = 0; r < a.group.ranks; ++r) width += a.widths[r];
  for (int r = 0; r < a.group.ranks; ++r) {
    const int mine = a.widths[r];
    for (int row = 0; row < a.rows; ++row)
      for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < mine;
           i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        a.out[row * width + begin + i] = Load(a.parts[r] + static_cast<int64_t>(row) * mine + i);
    begin += mine;
  }
}

__global__ void __launch_bounds__(kExchangeThreads)
    ShareListsKernel(const __grid_constant__ ShareListsArgs a) {
  const bool gives = a.group.rank == 0;
  const auto first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  WaitForPrevious();
  for (int i = first; gives && i < a.count; i += step)
    for (int list = 0; list < 2; ++list) a.shared[list * a.count + i] = a.lists[list][i];
  __threadfence_system();
  __syncthreads();
  if (!Meet(a.group) || gives) return;
  for (int i = first; i < a.count; i += step)
    for (int list = 0; list < 2; ++list) a.lists[list][i] = Load(a.shared + list * a.count + i);
}

unsigned BlocksFor(int64_t threads) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((threads + kExchangeThreads - 1) / kExchangeThreads, 1, kExchangeBlocks));
}

template <int kRanks>
cudaError_t AllReduceOf(const AllReduceArgs& args, cudaStream_t stream) {
  if constexpr (kRanks > kMaxRanks) {
    return cudaErrorInvalidValue;
  } else {
    if (args.group.ranks != kRanks) return AllReduceOf<kRanks + 1>(args, stream);
    return Launch(AllReduceKernel<kRanks>, dim3(BlocksFor((args.count + 3) / 4)), dim3(kExchangeThreads), 0,
                  stream, args);
  }
}

}  // namespace

cudaError_t LaunchAllReduce(const AllReduceArgs& args, cudaStream_t stream) {
  return AllReduceOf<1>(args, stream);
}

cudaError_t LaunchGatherColumns(const GatherColumnsArgs& args, cudaStream_t stream) {
  int widest = 0;
  for (int r = 0; r < args.group.ranks; ++r) widest = std::max(widest, args.widths[static_cast<size_t>(r)]);
  return Launch(GatherColumnsKernel, dim3(BlocksFor(widest)), dim3(kExchangeThreads), 0, stream, args);
}

cudaError_t LaunchShareLists(const ShareListsArgs& args, cudaStream_t stream) {
  return Launch(ShareListsKernel, dim3(1), dim3(kExchangeThreads), 0, stream, args);
}

}  // namespace celer::cuda
