// Launching kernels that may start before the one in front has ended (programmatic dependent launch). Such a
// kernel says when it needs what was written before it: WaitForPrevious().
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

namespace celer::cuda {

__device__ __forceinline__ void WaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The next kernel's blocks may take what room is left on the multiprocessors from now on.
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
  // All kernels ask for the same split of L1 and shared memory: a multiprocessor must be empty to change it.
  early[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  early[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = early;
  config.numAttrs = 2;
  if (!EarlyStart()) early[0].val.programmaticStreamSerializationAllowed = 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace celer::cuda
