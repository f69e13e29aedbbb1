// Host memory; see CpuAllocator() in allocator.h for the shared instance.
#pragma once

#include <mutex>
#include <unordered_map>

#include "device/allocator.h"

namespace celer {

class CpuMemory final : public Allocator {
 public:
  static constexpr size_t kAlignment = 64;              // a cache line, and the widest vector register
  static constexpr size_t kHugePage = size_t{2} << 20;  // from this size on: mmap, huge pages

  // `limit` is the most that may be in use at once; 0 means what this process can get at all: physical memory
  // and swap, or less in a container.
  explicit CpuMemory(size_t limit = 0);
  ~CpuMemory() override;

  Result<void*> Allocate(size_t bytes) override;
  void Free(void* ptr) override;
  Device device() const override { return Device::Cpu(); }
  MemoryStats Stats() const override;

 private:
  struct Block {
    size_t requested;
    size_t bytes;  // rounded
  };

  const size_t limit_;
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;  // allocations are few and large, a map costs nothing
  MemoryStats stats_;
};

// Memory the system could still give out without swapping; 0 if it does not say.
uint64_t AvailableHostBytes();
// Physical memory, or the container's limit if that is lower.
uint64_t TotalHostBytes();

}  // namespace celer
