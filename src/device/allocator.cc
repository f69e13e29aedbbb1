#include "device/allocator.h"

#include <fmt/format.h>

#if CELER_WITH_CUDA
#include "device/cuda_allocator.h"
#endif

namespace celer {

Result<Allocator*> AllocatorFor(Device device) {
  if (device.is_cpu()) return &CpuAllocator();
#if CELER_WITH_CUDA
  return CudaAllocator(device.index);
#else
  return Error::Unsupported("device ", device.ToString(),
                            ": this celer was built without CUDA; use `device` cpu");
#endif
}

size_t ReleaseCachedMemory() {
#if CELER_WITH_CUDA
  return TrimCudaPools();
#else
  return 0;
#endif
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as "1024.0".
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace celer
