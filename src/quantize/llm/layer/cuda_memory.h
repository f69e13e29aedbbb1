// Arrays in a GPU's memory, and copies to and from them. Only in builds with CUDA; all on the default stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/allocator.h"
#include "device/buffer.h"
#include "device/cuda_status.h"

namespace celer {

template <class T>
class CudaArray {
 public:
  // At least n elements; what is there is kept if it suffices, and its contents with it.
  Status Reserve(Allocator& memory, int64_t n) {
    if (n <= size_) return {};
    buffer_ = {};  // first: both together may not fit
    size_ = 0;
    CELER_ASSIGN(buffer_, Buffer::Allocate(memory, static_cast<size_t>(n) * sizeof(T)));
    size_ = n;
    return {};
  }
  Status Clear(int64_t n) {
    return CudaStatus(cudaMemsetAsync(buffer_.data(), 0, static_cast<size_t>(n) * sizeof(T), nullptr),
                      "clearing memory");
  }
  Status Upload(Allocator& memory, std::span<const T> from) {
    CELER_RETURN_IF_ERROR(Reserve(memory, static_cast<int64_t>(from.size())));
    return CudaStatus(cudaMemcpy(buffer_.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice),
                      "copying to the GPU");
  }
  // The first to.size() elements.
  Status Download(std::span<T> to) const {
    return CudaStatus(cudaMemcpy(to.data(), buffer_.data(), to.size_bytes(), cudaMemcpyDeviceToHost),
                      "copying from the GPU");
  }
  T* get() const { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
  int64_t size_ = 0;
};

}  // namespace celer
