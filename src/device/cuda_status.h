// Turns a CUDA return code into a Status; for host code that is built with CUDA only.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/result.h"

namespace celer {

// `what` says what was tried: "cuda:0: creating a stream".
inline Status CudaStatus(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return {};
  if (code == cudaErrorMemoryAllocation) return Error::OutOfMemory(what, ": ", cudaGetErrorString(code));
  return Error::Device(what, ": ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

// Makes `device` current for a scope.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~CudaDeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace celer
