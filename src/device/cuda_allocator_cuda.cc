#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/cpu_allocator.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"

namespace celer {
namespace {

// While another stream of this thread or process is being captured into a graph, CUDA refuses unsafe calls
// such as cudaMalloc, because they are not part of the graph. Ours need not be: capture mode relaxed.
class CaptureRelaxed {
 public:
  CaptureRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureRelaxed(const CaptureRelaxed&) = delete;
  CaptureRelaxed& operator=(const CaptureRelaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaSegments final : public SegmentSource {
 public:
  CudaSegments(int device, size_t total) : device_(device), total_(total) {}

  Result<void*> Allocate(size_t bytes) override {
    const CudaDeviceScope scope(device_);
    const CaptureRelaxed relaxed;
    void* segment = nullptr;
    const cudaError_t code = cudaMalloc(&segment, bytes);
    if (code == cudaSuccess) return segment;
    cudaGetLastError();  // or the next kernel launch would report our failure as its own
    return CudaStatus(code, device().ToString() + ": cannot allocate " + FormatBytes(bytes)).error();
  }

  void Free(void* segment) override {
    const CudaDeviceScope scope(device_);
    const CaptureRelaxed relaxed;
    cudaDeviceSynchronize();
    cudaFree(segment);
  }

  size_t FreeBytes() const override {
    const CudaDeviceScope scope(device_);
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  size_t TotalBytes() const override { return total_; }
  Device device() const override { return Device::Cuda(device_); }

 private:
  const int device_;
  const size_t total_;
};

class PinnedSegments final : public SegmentSource {
 public:
  Result<void*> Allocate(size_t bytes) override {
    const CaptureRelaxed relaxed;
    void* segment = nullptr;
    const cudaError_t code = cudaHostAlloc(&segment, bytes, cudaHostAllocPortable);
    if (code == cudaSuccess) return segment;
    cudaGetLastError();
    return CudaStatus(code, "cpu: cannot allocate " + FormatBytes(bytes) + " of pinned memory").error();
  }
  void Free(void* segment) override {
    const CaptureRelaxed relaxed;
    cudaFreeHost(segment);  // announced copies are done, or the block would be pending
  }
  size_t FreeBytes() const override { return AvailableHostBytes(); }
  size_t TotalBytes() const override { return total_; }
  Device device() const override { return Device::Cpu(); }

 private:
  const size_t total_ = TotalHostBytes();
};

constexpr int kAllDevices = -1;

// Streams of one device, or of all.
class CudaEvents final : public StreamEvents {
 public:
  explicit CudaEvents(int device) : device_(device) {}

  std::optional<Event> Record(StreamId stream) override {
    const auto handle = reinterpret_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    // An event recorded into a graph would tell nothing about the memory: that of a captured step must
    // outlive the capture.
    if (cudaStreamIsCapturing(handle, &capture) == cudaSuccess)
      CELER_CHECK(capture == cudaStreamCaptureStatusNone);
    int device = device_;
    if (device == kAllDevices && cudaStreamGetDevice(handle, &device) != cudaSuccess) device = 0;
    const CudaDeviceScope scope(device);
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess) {
      if (cudaEventRecord(event, handle) == cudaSuccess) return reinterpret_cast<Event>(event);
      cudaEventDestroy(event);
    }
    // Without an event only waiting is safe. A fault that lasts makes all further work fail by itself.
    cudaGetLastError();
    SynchronizeDevice();
    return std::nullopt;
  }

  bool Done(Event event) override {
    const CaptureRelaxed relaxed;
    // A fault ends all work on the device, so nothing uses the memory any more.
    return cudaEventQuery(reinterpret_cast<cudaEvent_t>(event)) != cudaErrorNotReady;
  }

  void Release(Event event) override { cudaEventDestroy(reinterpret_cast<cudaEvent_t>(event)); }

  bool SynchronizeDevice() override {
    const int first = device_ == kAllDevices ? 0 : device_;
    const int last = device_ == kAllDevices ? CudaDeviceCount() - 1 : device_;
    bool idle = true;
    for (int device = first; device <= last; ++device) {
      const CudaDeviceScope scope(device);
      const CaptureRelaxed relaxed;
      if (cudaDeviceSynchronize() == cudaSuccess) continue;
      cudaGetLastError();
      idle = false;
    }
    return idle;
  }

 private:
  const int device_;
};

struct DevicePool {
  DevicePool(int device, size_t total) : segments(device, total), events(device) {}
  CudaSegments segments;
  CudaEvents events;
  CachingPool pool{segments, events};
  StreamAllocator allocator{pool};
};

struct HostPool {
  PinnedSegments segments;
  CudaEvents events{kAllDevices};
  CachingPool pool{segments, events};
  // Not a CUDA stream: blocks of the host's own order of events.
  StreamAllocator allocator{pool, kAnyStream - 1};
};

// Never destroyed: the driver may be gone before the statics are.
struct DevicePools {
  std::mutex mutex;
  std::map<int, std::unique_ptr<DevicePool>> by_device;
};
DevicePools& Pools() {
  static auto* const instance = new DevicePools;
  return *instance;
}

Result<DevicePool*> PoolFor(int device) {
  const int devices = CudaDeviceCount();
  if (device < 0 || device >= devices)
    return Error::Invalid("cuda:", device, ": there are ", devices, " CUDA devices",
                          devices == 0 ? "; use `device` cpu" : ", counted from 0");
  const std::lock_guard lock(Pools().mutex);
  auto& slot = Pools().by_device[device];
  if (slot == nullptr) {
    size_t free = 0, total = 0;
    const CudaDeviceScope scope(device);
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total),
                                     Device::Cuda(device).ToString() + ": asking for its memory"));
    slot = std::make_unique<DevicePool>(device, total);
  }
  return slot.get();
}

HostPool& Pinned() {
  static auto* const instance = new HostPool;
  return *instance;
}

}  // namespace

Result<CachingPool*> CudaPool(int device) {
  CELER_ASSIGN(DevicePool * found, PoolFor(device));
  return &found->pool;
}
Result<Allocator*> CudaAllocator(int device) {
  CELER_ASSIGN(DevicePool * found, PoolFor(device));
  return &found->allocator;
}
CachingPool& PinnedPool() {
  return Pinned().pool;
}
Allocator& PinnedAllocator() {
  return Pinned().allocator;
}

size_t TrimCudaPools() {
  // Without a GPU that was used there is no pinned memory, either.
  const std::lock_guard lock(Pools().mutex);
  if (Pools().by_device.empty()) return 0;
  size_t bytes = Pinned().pool.Trim();
  for (const auto& [device, made] : Pools().by_device) bytes += made->pool.Trim();
  return bytes;
}

}  // namespace celer
