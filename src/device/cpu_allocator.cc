#include "device/cpu_allocator.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/safe_math.h"
#include "device/cgroup.h"

namespace celer {
namespace {

struct HostMemory {
  uint64_t ram = 0;
  uint64_t swap = 0;
};

HostMemory ReadHostMemory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return {};
  return {uint64_t{info.totalram} * info.mem_unit, uint64_t{info.totalswap} * info.mem_unit};
}

// More than this can never be given; asking the kernel anyway might succeed (overcommit) and end in SIGKILL.
size_t PossibleBytes() {
  const HostMemory host = ReadHostMemory();
  if (host.ram == 0) return std::numeric_limits<size_t>::max() / 2;
  return TotalHostBytes() + host.swap;
}

// Aligned to 2 MiB: map more than needed, then give the ends back. nullptr when the kernel refuses.
void* MapHuge(size_t bytes) {
  const size_t padded = bytes + CpuMemory::kHugePage;
  void* const mapped = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  std::byte* const aligned = begin + (RoundUp(address, CpuMemory::kHugePage) - address);
  const size_t head = static_cast<size_t>(aligned - begin);
  const size_t tail = padded - head - bytes;
  if (head > 0) munmap(begin, head);
  if (tail > 0) munmap(aligned + bytes, tail);
  madvise(aligned, bytes, MADV_HUGEPAGE);  // a hint: without huge pages the memory is as good, only slower
  return aligned;
}

}  // namespace

uint64_t TotalHostBytes() {
  const uint64_t ram = ReadHostMemory().ram;
  return std::min(ram, ReadCgroupLimits().memory_bytes.value_or(ram));
}

uint64_t AvailableHostBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return 0;
}

CpuMemory::CpuMemory(size_t limit) : limit_(limit == 0 ? PossibleBytes() : limit) {}

CpuMemory::~CpuMemory() {
  CELER_CHECK_EQ(blocks_.size(), 0u);  // somebody still holds memory of this allocator
}

Result<void*> CpuMemory::Allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto failed = [&](const char* why) {
    ++stats_.failures;
    return Error::OutOfMemory("cpu: cannot allocate ", FormatBytes(bytes), ": ", why, " (at most ",
                              FormatBytes(limit_), " can be used, ", FormatBytes(stats_.in_use),
                              " are in use in ", stats_.segments, " blocks, the system has ",
                              FormatBytes(AvailableHostBytes()),
                              " available); use a smaller model, context or batch");
  };
  if (bytes > limit_ || stats_.in_use > limit_ - bytes) return failed("more than there is");

  const bool huge = bytes >= kHugePage;
  // Only the start needs 2 MiB alignment; rounding the size up as well would waste half of a 2.1 MiB block.
  const size_t unit = huge ? static_cast<size_t>(sysconf(_SC_PAGESIZE)) : kAlignment;
  const size_t rounded = RoundUp(bytes, unit);
  void* const ptr = huge ? MapHuge(rounded) : std::aligned_alloc(kAlignment, rounded);
  if (ptr == nullptr) return failed("the system refused");

  blocks_.emplace(ptr, Block{bytes, rounded});
  ++stats_.allocations;
  ++stats_.segments;
  stats_.requested += bytes;
  stats_.in_use += rounded;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return ptr;
}

void CpuMemory::Free(void* ptr) {
  if (ptr == nullptr) return;
  Block block{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(ptr);
    CELER_CHECK(found != blocks_.end());  // freed twice, or never ours
    block = found->second;
    blocks_.erase(found);
    ++stats_.frees;
    --stats_.segments;
    stats_.requested -= block.requested;
    stats_.in_use -= block.bytes;
  }
  if (block.requested >= kHugePage) {
    munmap(ptr, block.bytes);
  } else {
    std::free(ptr);
  }
}

MemoryStats CpuMemory::Stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats out = stats_;  // nothing is cached here: every block goes back at once
  out.reserved = out.in_use;
  out.peak_reserved = out.peak_in_use;
  out.segment_allocations = out.allocations;
  out.segment_frees = out.frees;
  return out;
}

Allocator& CpuAllocator() {
  static auto* const instance = new CpuMemory;  // never destroyed: buffers may outlive other statics
  return *instance;
}

}  // namespace celer
