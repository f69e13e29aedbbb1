#include "kernels/llm/crossing/crossing_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

__device__ __forceinline__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Past the caches: the host has written it since they saw it last.
__device__ __forceinline__ float4 LoadHost(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float LoadHost(const float* from) {
  float v;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}

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
    const float4 v = LoadHost(host + i);
    x[i] = {v.x / a.scale, v.y / a.scale, v.z / a.scale, v.w / a.scale};
  }
  for (int64_t i = quads * 4 + threadIdx.x; i < a.count; i += kCrossingThreads)
    a.x[i] = LoadHost(a.host + i) / a.scale;
}

}  // namespace

cudaError_t LaunchCrossing(const CrossingArgs& args, cudaStream_t stream) {
  return Launch(CrossingKernel, 1, kCrossingThreads, 0, stream, args);
}

}  // namespace celer::cuda
