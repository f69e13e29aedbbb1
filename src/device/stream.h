// A CUDA stream and a CUDA event that destroy themselves. This header needs no CUDA; in a build without it
// Create() says so and the default stream, on which nothing ever runs, is always idle.
#pragma once

#include <cstdint>

#include "base/result.h"

using cudaStream_t = struct CUstream_st*;  // as cuda_runtime_api.h has them
using cudaEvent_t = struct CUevent_st*;

namespace celer {

class Event;

class Stream {
 public:
  Stream() = default;  // the default stream of the current device
  // A stream that does not wait for the default stream. High priority: its kernels go before those of others.
  static Result<Stream> Create(int device = 0, bool high_priority = false);

  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cudaStream_t get() const { return handle_; }
  uintptr_t id() const { return reinterpret_cast<uintptr_t>(handle_); }  // the StreamId of caching_pool.h

  Status Synchronize() const;                // the host waits for all that is queued
  Status WaitFor(const Event& event) const;  // what is queued from now on waits; the host does not
  Result<bool> Idle() const;  // nothing is queued or running; faults of earlier work come out here

 private:
  cudaStream_t handle_ = nullptr;
};

class Event {
 public:
  // `timed` events can be subtracted, at the price of a slower Record.
  static Result<Event> Create(int device = 0, bool timed = false);

  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  cudaEvent_t get() const { return handle_; }

  Status Record(const Stream& stream);  // the end of what is queued on `stream` now
  Result<bool> Done() const;
  Status Synchronize() const;
  // Milliseconds from `start` to this event; both timed and done.
  Result<float> MillisecondsSince(const Event& start) const;

 private:
  Event() = default;
  cudaEvent_t handle_ = nullptr;
};

}  // namespace celer
