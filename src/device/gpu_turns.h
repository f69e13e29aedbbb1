// Kernels with a grid-wide barrier need all of their blocks to be resident at once. Two such kernels from two
// streams of a process could each hold a part of the GPU and wait for the rest forever (deadlock), so streams
// with such kernels take turns: what one of them queues waits for what the others have queued. A stream alone
// waits for nothing.
#pragma once

#include <memory>
#include <mutex>

#include "base/result.h"
#include "device/stream.h"

namespace celer {

class GpuTurns {
 public:
  // `stream` is of `device`, and outlives this.
  static Result<std::unique_ptr<GpuTurns>> Join(int device, const Stream& stream);
  ~GpuTurns();  // nothing may be running on the stream any more
  GpuTurns(const GpuTurns&) = delete;
  GpuTurns& operator=(const GpuTurns&) = delete;

  // To be held while kernels are queued on the stream, a capture included.
  using Turn = std::unique_lock<std::mutex>;
  Result<Turn> Take();

 private:
  struct Gpu;
  GpuTurns(Gpu& gpu, const Stream& stream, Event queued);

  Gpu& gpu_;
  const Stream& stream_;
  Event queued_;
};

}  // namespace celer
