#include "device/gpu_turns.h"

#include <map>
#include <utility>

namespace celer {

struct GpuTurns::Gpu {
  std::mutex mutex;
  GpuTurns* last = nullptr;  // whose turn was the last one
  static Gpu& Of(int device) {
    static std::mutex mutex;
    static std::map<int, Gpu> all;
    const std::lock_guard lock(mutex);
    return all[device];
  }
};

GpuTurns::GpuTurns(Gpu& gpu, const Stream& stream, Event queued)
    : gpu_(gpu), stream_(stream), queued_(std::move(queued)) {}

Result<std::unique_ptr<GpuTurns>> GpuTurns::Join(int device, const Stream& stream) {
  CELER_ASSIGN(Event queued, Event::Create(device));
  return std::unique_ptr<GpuTurns>(new GpuTurns(Gpu::Of(device), stream, std::move(queued)));
}

GpuTurns::~GpuTurns() {
  const std::lock_guard lock(gpu_.mutex);
  if (gpu_.last == this) gpu_.last = nullptr;
}

Result<GpuTurns::Turn> GpuTurns::Take() {
  Turn turn(gpu_.mutex);
  if (gpu_.last && gpu_.last != this) {
    CELER_RETURN_IF_ERROR(gpu_.last->queued_.Record(gpu_.last->stream_));
    CELER_RETURN_IF_ERROR(stream_.WaitFor(gpu_.last->queued_));
  }
  gpu_.last = this;
  return turn;
}

}  // namespace celer
