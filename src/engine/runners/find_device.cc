#include "engine/runners/find_device.h"

#include "device/gpu/gpu_code.h"

namespace celer {

Result<Device> FindDevice(const DeviceOptions& options) {
  using Kind = DeviceOptions::Kind;
  if (options.kind == Kind::kAuto) return CudaDeviceCount() > 0 ? Device::Cuda(0) : Device::Cpu();
  if (options.kind == Kind::kCpu) return Device::Cpu();
  if (!BuiltWithCuda())
    return Error::Invalid(
        "`device` ", options.ToString(),
        ": celer was built without CUDA; build it with -DCELER_CUDA=ON, or try `device` cpu");
  CELER_RETURN_IF_ERROR(CheckGpu(options.index));
  return Device::Cuda(options.index);
}

}  // namespace celer
