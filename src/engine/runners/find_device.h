// From the `device` option to a device of this machine.
#pragma once

#include "base/device.h"
#include "base/result.h"
#include "celer/options.h"

namespace celer {

// An error if there is no such device, or this build has no CUDA. "auto" is the first GPU, else the CPU.
Result<Device> FindDevice(const DeviceOptions& options);

}  // namespace celer
