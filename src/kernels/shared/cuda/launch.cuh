// Programmatic dependent launch (PDL): kernels that may start before the previous one has ended. Such a
// kernel says when it needs what was written before it: WaitForPrevious() (griddepcontrol.wait).
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/shared/cuda/per_device.h"

namespace celer::cuda {

__device__ __forceinline__ void WaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// griddepcontrol.launch_dependents: the next kernel's blocks may be scheduled from now on.
__device__ __forceinline__ void LetNextStart() {
  asm volatile("griddepcontrol.launch_dependents;");
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
  cudaLaunchAttribute early[2];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  // All kernels ask for the same carveout of L1 and shared memory: a multiprocessor must be idle to change
  // it.
  early[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  early[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = early;
  config.numAttrs = 2;
  if (!EarlyStart()) early[0].val.programmaticStreamSerializationAllowed = 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// What a block may have of dynamic shared memory on compute capability 9.0, if its kernel has no other.
constexpr int kMaxSharedBytes = 227 * 1024;

// A kernel must ask, on each device, before it gets more than 48 KB of dynamic shared memory.
template <auto kKernel, int kMost = kMaxSharedBytes>
cudaError_t AllowShared() {
  static PerDevice<cudaError_t> allowed;
  return allowed.Get(
      [] { return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost); });
}

// Launch() of a kernel that needs up to kMost bytes of dynamic shared memory.
template <auto kKernel, int kMost = kMaxSharedBytes, class... Args>
cudaError_t LaunchLarge(dim3 grid, dim3 block, int shared, cudaStream_t stream, Args&&... args) {
  if (const cudaError_t code = AllowShared<kKernel, kMost>(); code != cudaSuccess) return code;
  return Launch(kKernel, grid, block, static_cast<size_t>(shared), stream, std::forward<Args>(args)...);
}

}  // namespace celer::cuda
