#include "limits/probe/probe_timer_cuda.h"

#include <cuda_runtime_api.h>

#include "device/cuda_status.h"

namespace celer::probe {

Result<CudaTimer> CudaTimer::Create(int device) {
  CELER_ASSIGN(Stream stream, Stream::Create(device));
  return CudaTimer(device, std::move(stream));
}

Result<std::vector<double>> CudaTimer::Time(int warmups, int repetitions,
                                            const std::function<Status()>& queue) {
  while (events_.size() < static_cast<size_t>(repetitions) + 1) {
    CELER_ASSIGN(Event event, Event::Create(device_, /*timed=*/true));
    events_.push_back(std::move(event));
  }
  for (int i = 0; i < warmups; ++i) CELER_RETURN_IF_ERROR(queue());
  CELER_RETURN_IF_ERROR(events_[0].Record(stream_));
  for (size_t i = 1; i <= static_cast<size_t>(repetitions); ++i) {
    CELER_RETURN_IF_ERROR(queue());
    CELER_RETURN_IF_ERROR(events_[i].Record(stream_));
  }
  CELER_RETURN_IF_ERROR(stream_.Synchronize());
  std::vector<double> seconds;
  for (size_t i = 1; i <= static_cast<size_t>(repetitions); ++i) {
    CELER_ASSIGN(const float milliseconds, events_[i].MillisecondsSince(events_[i - 1]));
    seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
  }
  return seconds;
}

Result<CudaScratch> CudaScratch::Allocate(size_t bytes) {
  CudaScratch scratch;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&scratch.data_, bytes),
                                   "allocating " + std::to_string(bytes >> 20) + " MiB on the GPU"));
  return scratch;
}

CudaScratch::~CudaScratch() {
  if (data_ != nullptr) cudaFree(data_);
}

}  // namespace celer::probe
