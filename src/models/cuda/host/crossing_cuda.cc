#include "models/cuda/host/crossing.h"

#include <atomic>
#include <chrono>

#include "base/check.h"
#include "base/spin.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/crossing/crossing_cuda.h"

namespace celer {
namespace {

constexpr size_t kLine = 128;  // of the caches of CPU and GPU, the longer one

uint32_t* Handed(const Buffer& host) {
  return reinterpret_cast<uint32_t*>(host.data());
}
uint32_t* Answered(const Buffer& host) {
  return reinterpret_cast<uint32_t*>(host.data() + kLine);
}

}  // namespace

Status CudaCrossing::Make(int device, int64_t floats) {
  CELER_ASSIGN(host_, Buffer::Allocate(PinnedAllocator(), 2 * kLine + static_cast<size_t>(floats) * 4));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(device_, Buffer::Allocate(*allocator, sizeof(uint32_t)));
  floats_ = floats;
  *Handed(host_) = *Answered(host_) = seen_ = 0;
  // On the default stream, as the workspace's zeros.
  return CudaStatus(cudaMemsetAsync(device_.data(), 0, sizeof(uint32_t), nullptr), "clearing GPU memory");
}

float* CudaCrossing::x() const {
  return reinterpret_cast<float*>(host_.data() + 2 * kLine);
}

cudaError_t CudaCrossing::Launch(float* from, int64_t count, float scale, const Stream& stream) const {
  CELER_CHECK_LE(count, floats_);
  return cuda::LaunchCrossing({.x = from,
                               .count = count,
                               .scale = scale,
                               .host = x(),
                               .handed = Handed(host_),
                               .answered = Answered(host_),
                               .crossings = reinterpret_cast<uint32_t*>(device_.data())},
                              stream.get());
}

Status CudaCrossing::Answer(const Stream& stream, FunctionRef<void(float* x)> work) {
  constexpr std::chrono::milliseconds kLook{20};  // from one look at the stream to the next
  const std::atomic_ref<uint32_t> handed(*Handed(host_)), answered(*Answered(host_));
  const auto is_here = [&] { return handed.load(std::memory_order_acquire) != seen_; };
  while (!SpinUntil(is_here, kLook)) {
    CELER_ASSIGN(const bool idle, stream.Idle());
    if (idle && !is_here()) return Error::Device("a step ended on the GPU without handing over its residual");
  }
  seen_ = handed.load(std::memory_order_acquire);
  work(x());
  answered.store(seen_, std::memory_order_release);
  return {};
}

}  // namespace celer
