// Sticky error: the first one among launches whose callers do not check.
#pragma once

#include <optional>
#include <utility>

#include "base/result.h"
#include "device/cuda_status.h"

namespace celer {

class CudaFault {
 public:
  void Check(cudaError_t code) {
    if (code != cudaSuccess && code_ == cudaSuccess) code_ = code;
  }
  void Check(const Status& status) {
    if (!status && !error_) error_ = status.error();
  }
  bool ok() const { return code_ == cudaSuccess && !error_; }
  // Returns and clears it.
  Status Take(const char* what) {
    const cudaError_t code = std::exchange(code_, cudaSuccess);
    if (error_) return *std::exchange(error_, std::nullopt);
    return CudaStatus(code, what);
  }

 private:
  cudaError_t code_ = cudaSuccess;
  std::optional<Error> error_;
};

}  // namespace celer
