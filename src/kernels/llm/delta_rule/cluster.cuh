// Blocks that run beside each other on neighbouring multiprocessors and write into each other's shared memory. Of code of
// 9.0 alone; in generic code all this does nothing, and nobody calls it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {

constexpr int kMostInCluster = 8;  // on any GPU that has clusters

// Every thread of all its blocks arrives, and then waits: what was written before the one is seen after the other.
__device__ __forceinline__ void ClusterArrive() {
#if CELER_HOPPER
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if CELER_HOPPER
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// To the place that `own` is in shared memory, in that of another block.
__device__ __forceinline__ void StoreInCluster([[maybe_unused]] float* own, [[maybe_unused]] int rank,
                                               [[maybe_unused]] float value) {
#if CELER_HOPPER
  uint32_t to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
#endif
}

// Launch() with clusters of so many blocks, neighbours in x.
template <class... Params, class... Args>
cudaError_t LaunchInClusters(void (*kernel)(Params...), dim3 grid, int cluster, dim3 block,
                             cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  cudaLaunchAttribute attributes[3];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = EarlyStart() ? 1 : 0;
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  attributes[2].id = cudaLaunchAttributeClusterDimension;
  attributes[2].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[2].val.clusterDim.y = attributes[2].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = 3;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace celer::cuda
