#include "engine/runners/find_device.h"

namespace celer {

Result<Device> FindDevice(const DeviceOptions& options) {
  using Kind = DeviceOptions::Kind;
  if (options.kind == Kind::kAuto) return CudaDeviceCount() > 0 ? Device::Cuda(0) : Device::Cpu();
  if (options.kind == Kind::kCpu) return Device::Cpu();
  if (!BuiltWithCuda())
    return Error::Invalid(
        "`device` ", options.ToString(),
        ": celer was built without CUDA; build it with -DCELER_CUDA=ON, or try `device` cpu");
  if (const int found = CudaDeviceCount(); options.index < 0 || options.index >= found)
    return Error::Invalid("`device` ", options.ToString(), ": ", found,
                          " CUDA devices can be used here; try `device` cpu");
  return Device::Cuda(options.index);
}

}  // namespace celer
