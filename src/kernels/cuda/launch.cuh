// Launching kernels that may start before the one in front has ended (programmatic dependent launch). Such a
// kernel says when it needs what was written before it: WaitForPrevious().
#pragma once

#include <cuda_runtime.h>

namespace celer::cuda {

__device__ __forceinline__ void WaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The next kernel's blocks may take what room is left on the multiprocessors from now on.
__device__ __forceinline__ void LetNextStart() {
  asm volatile("griddepcontrol.launch_dependents;");
}

template <class... Params, class... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace celer::cuda
