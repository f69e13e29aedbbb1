#include "kernels/llm/crossing/crossing_cuda.h"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/system_scope.cuh"

namespace celer::cuda {
namespace {

using system_scope::Load;
using system_scope::LoadAcquire;
using system_scope::StoreRelease;

// Grid: one block. The next kernel may start, and prefetch its weights, while the host works.
__global__ void __launch_bounds__(kCrossingThreads) CrossingKernel(const __grid_constant__ CrossingArgs a) {
  WaitForPrevious();
  LetNextStart();
  const int64_t quads = a.count / 4;
  auto* const x = reinterpret_cast<float4*>(a.x);
  auto* const host = reinterpret_cast<float4*>(a.host);
  for (int64_t i = threadIdx.x; i < quads; i += kCrossingThreads) {
    const float4 v = x[i];
    host[i] = {v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale};
  }
  for (int64_t i = quads * 4 + threadIdx.x; i < a.count; i += kCrossingThreads) a.host[i] = a.x[i] * a.scale;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t now = *a.crossings + 1;
    *a.crossings = now;
    StoreRelease(a.handed, now);
    while (LoadAcquire(a.answered) != now) __nanosleep(100);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < quads; i += kCrossingThreads) {
    const float4 v = Load(host + i);
    x[i] = {v.x / a.scale, v.y / a.scale, v.z / a.scale, v.w / a.scale};
  }
  for (int64_t i = quads * 4 + threadIdx.x; i < a.count; i += kCrossingThreads)
    a.x[i] = Load(a.host + i) / a.scale;
}

}  // namespace

cudaError_t LaunchCrossing(const CrossingArgs& args, cudaStream_t stream) {
  return Launch(CrossingKernel, 1, kCrossingThreads, 0, stream, args);
}

}  // namespace celer::cuda
