// Where memory comes from. An Allocator hands out bytes on one device; Buffer (buffer.h) owns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/device.h"
#include "base/result.h"

namespace celer {

// All sizes in bytes. in_use <= reserved; what lies between is cached for the next request.
struct MemoryStats {
  size_t requested = 0;      // as asked for, of what is alive now
  size_t in_use = 0;         // the same after rounding
  size_t peak_in_use = 0;    //
  size_t reserved = 0;       // taken from the system or the driver
  size_t peak_reserved = 0;  //
  size_t pending = 0;        // freed, but another stream may still use it; part of the cached bytes
  size_t largest_free = 0;   // the largest block that can be handed out without asking the driver
  size_t segments = 0;       // pieces that `reserved` consists of
  uint64_t allocations = 0;  // since the start
  uint64_t frees = 0;
  uint64_t failures = 0;
  uint64_t segment_allocations = 0;  // calls of the slow allocator below
  uint64_t segment_frees = 0;

  size_t cached() const { return reserved - in_use; }
  // External fragmentation: the share of the cached bytes that one single request could not get. 0 is one
  // block, near 1 is many tiny ones.
  double fragmentation() const {
    return cached() == 0 ? 0.0 : 1.0 - static_cast<double>(largest_free) / static_cast<double>(cached());
  }
};

// Thread-safe. The contents of new memory are undefined.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // At least 64-byte aligned. Zero bytes give nullptr, which is not an error.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* ptr) = 0;  // nullptr is ignored; a pointer that is not ours is a CHECK
  virtual Device device() const = 0;
  virtual MemoryStats Stats() const = 0;
};

// The process-wide allocator of host memory: 64-byte aligned; from 2 MiB on aligned to 2 MiB and backed by
// huge pages where the system has them. Lives until the process ends.
Allocator& CpuAllocator();

// The allocator of a device: CpuAllocator(), or the caching pool of a GPU on its default stream.
Result<Allocator*> AllocatorFor(Device device);

// What the pools of all GPUs, and of pinned memory, keep for the next request goes back to the driver. Returns its bytes.
size_t ReleaseCachedMemory();

std::string FormatBytes(uint64_t bytes);  // "512 B", "1.5 GiB"

}  // namespace celer
