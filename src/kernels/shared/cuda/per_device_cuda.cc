#include "kernels/shared/cuda/per_device.h"

#include <cuda_runtime_api.h>

#include "device/gpu/gpu_code.h"

namespace celer::cuda {

int CurrentDevice() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

int Multiprocessors() {
  static PerDevice<int> count;
  return count.Get([] {
    int value = 1;
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, CurrentDevice());
    return value;
  });
}

bool HopperCode() {
  return CodeOnGpu(CurrentDevice()).hopper();
}

int SharedLimit() {
  return CodeOnGpu(CurrentDevice()).shared_bytes;
}

}  // namespace celer::cuda
