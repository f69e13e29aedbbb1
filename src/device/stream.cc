#include "device/stream.h"

#include <utility>

#if CELER_WITH_CUDA
#include <string>

#include "base/device.h"
#include "device/cuda_status.h"
#endif

namespace celer {

Stream::Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);  // ours ends with `other`
  return *this;
}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

#if CELER_WITH_CUDA

namespace {

Status CheckDevice(int device) {
  const int devices = CudaDeviceCount();
  if (device >= 0 && device < devices) return {};
  return Error::Invalid("cuda:", device, ": there are ", devices, " CUDA devices",
                        devices == 0 ? "; use `device` cpu" : ", counted from 0");
}

std::string On(int device, const char* what) {
  return "cuda:" + std::to_string(device) + ": " + what;
}

// cudaErrorNotReady is an answer, not a fault.
Result<bool> IsReady(cudaError_t code, const char* what) {
  if (code == cudaErrorNotReady) return false;
  CELER_RETURN_IF_ERROR(CudaStatus(code, what));
  return true;
}

}  // namespace

Result<Stream> Stream::Create(int device, bool high_priority) {
  CELER_RETURN_IF_ERROR(CheckDevice(device));
  const CudaDeviceScope scope(device);
  int lowest = 0, highest = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                                   On(device, "reading stream priorities")));
  Stream stream;
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream.handle_, cudaStreamNonBlocking, high_priority ? highest : lowest),
      On(device, "creating a stream")));
  return stream;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(handle_);
}
Status Stream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(handle_), "waiting for a CUDA stream");
}
Status Stream::WaitFor(const Event& event) const {
  return CudaStatus(cudaStreamWaitEvent(handle_, event.get(), 0), "letting a CUDA stream wait for an event");
}
Result<bool> Stream::Idle() const {
  return IsReady(cudaStreamQuery(handle_), "looking at a CUDA stream");
}

Result<Event> Event::Create(int device, bool timed) {
  CELER_RETURN_IF_ERROR(CheckDevice(device));
  const CudaDeviceScope scope(device);
  Event event;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event.handle_, timed ? cudaEventDefault : cudaEventDisableTiming),
                 On(device, "creating an event")));
  return event;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}
Status Event::Record(const Stream& stream) {
  return CudaStatus(cudaEventRecord(handle_, stream.get()), "recording a CUDA event");
}
Result<bool> Event::Done() const {
  return IsReady(cudaEventQuery(handle_), "looking at a CUDA event");
}
Status Event::Synchronize() const {
  return CudaStatus(cudaEventSynchronize(handle_), "waiting for a CUDA event");
}
Result<float> Event::MillisecondsSince(const Event& start) const {
  float milliseconds = 0;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, start.handle_, handle_), "timing two CUDA events"));
  return milliseconds;
}

#else

namespace {

Error NoCuda() {
  return Error::Unsupported("this celer was built without CUDA; use `device` cpu");
}

}  // namespace

// No event and no stream but the default one can exist here, so the others have nothing to do.
Result<Stream> Stream::Create(int, bool) {
  return NoCuda();
}
Stream::~Stream() = default;
Status Stream::Synchronize() const {
  return {};
}
Status Stream::WaitFor(const Event&) const {
  return {};
}
Result<bool> Stream::Idle() const {
  return true;
}
Result<Event> Event::Create(int, bool) {
  return NoCuda();
}
Event::~Event() = default;
Status Event::Record(const Stream&) {
  return NoCuda();
}
Result<bool> Event::Done() const {
  return NoCuda();
}
Status Event::Synchronize() const {
  return NoCuda();
}
Result<float> Event::MillisecondsSince(const Event&) const {
  return NoCuda();
}

#endif

}  // namespace celer
