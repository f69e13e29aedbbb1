// Shared by CUDA tests: an array in device memory, gone at the end.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace celer::cuda::testing {

template <class T>
class OnDevice {
 public:
  // What a kernel should write and does not shows, unless zeros are asked for.
  explicit OnDevice(int64_t n, int fill = 0xff) : n_(static_cast<size_t>(n)) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, n_ * sizeof(T) + 16));
    EXPECT_EQ(cudaSuccess, cudaMemset(data_, fill, n_ * sizeof(T)));
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(static_cast<int64_t>(values.size())) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> out(n_);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  size_t n_;
  void* data_ = nullptr;
};

}  // namespace celer::cuda::testing
