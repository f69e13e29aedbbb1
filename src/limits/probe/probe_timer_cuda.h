// Times work on a GPU stream, with events around every repetition.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "device/stream.h"

namespace celer::probe {

class CudaTimer {
 public:
  static Result<CudaTimer> Create(int device);

  cudaStream_t stream() const { return stream_.get(); }
  const Stream& owned_stream() const { return stream_; }

  // The seconds of each repetition of `queue`, which puts work on stream(): `repetitions` of them, after
  // `warmups` untimed ones.
  Result<std::vector<double>> Time(int warmups, int repetitions, const std::function<Status()>& queue);

 private:
  CudaTimer(int device, Stream stream) : device_(device), stream_(std::move(stream)) {}

  int device_;
  Stream stream_;
  std::vector<Event> events_;  // grows to the largest repetitions + 1; kept, since creating one is slow
};

// Memory of the current device, freed with the scope.
class CudaScratch {
 public:
  CudaScratch() = default;
  CudaScratch(CudaScratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  CudaScratch& operator=(CudaScratch&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~CudaScratch();
  static Result<CudaScratch> Allocate(size_t bytes);

  void* get() const { return data_; }
  char* bytes() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace celer::probe
