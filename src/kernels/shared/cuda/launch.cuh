// Programmatic dependent launch (PDL): kernels that may start before the previous one has ended. Such a
// kernel says when it needs what was written before it: WaitForPrevious() (griddepcontrol.wait). Generic code has no
// such thing: there a kernel starts when the previous one has ended.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/shared/cuda/per_device.h"
#include "kernels/shared/cuda/target.cuh"

namespace celer::cuda {

__device__ __forceinline__ void WaitForPrevious() {
#if CELER_HOPPER
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// griddepcontrol.launch_dependents: the next kernel's blocks may be scheduled from now on.
__device__ __forceinline__ void LetNextStart() {
#if CELER_HOPPER
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// CELER_PDL=0 turns the early start off, to measure what it brings.
inline bool EarlyStart() {
  static const bool on = [] {
    const char* value = std::getenv("CELER_PDL");
    return value == nullptr || std::strcmp(value, "0") != 0;
  }();
  return on;
}

template <class... Params, class... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  // All kernels ask for the same carveout of L1 and shared memory: a multiprocessor must be idle to change
  // it.
  attributes[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  // A generic kernel does not wait by itself.
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = EarlyStart() ? 1 : 0;
  config.attrs = attributes;
  config.numAttrs = HopperCode() ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// What a block may have of dynamic shared memory on compute capability 9.0, if its kernel has no other. Elsewhere it is
// less: SharedLimit().
constexpr int kMaxSharedBytes = 227 * 1024;

// A kernel must ask, on each device, before it gets more than 48 KB of dynamic shared memory.
template <auto kKernel, int kMost = kMaxSharedBytes>
cudaError_t AllowShared() {
  static PerDevice<cudaError_t> allowed;
  return allowed.Get([] {
    int most = kMost;
    if (SharedLimit() < kMaxSharedBytes) {  // beside what the kernel has of its own
      cudaFuncAttributes own = {};
      if (const cudaError_t code = cudaFuncGetAttributes(&own, kKernel); code != cudaSuccess) return code;
      most = std::min(most, SharedLimit() - static_cast<int>(own.sharedSizeBytes));
    }
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  });
}

// Launch() of a kernel that needs up to kMost bytes of dynamic shared memory.
template <auto kKernel, int kMost = kMaxSharedBytes, class... Args>
cudaError_t LaunchLarge(dim3 grid, dim3 block, int shared, cudaStream_t stream, Args&&... args) {
  if (const cudaError_t code = AllowShared<kKernel, kMost>(); code != cudaSuccess) return code;
  return Launch(kKernel, grid, block, static_cast<size_t>(shared), stream, std::forward<Args>(args)...);
}

}  // namespace celer::cuda
