// From what was asked for to a device that is there.
#pragma once

#include "base/device.h"
#include "base/result.h"
#include "celer/options.h"

namespace celer {

// One sentence if it is not there, or if this build does not know such devices. "auto" is the first GPU, or
// the CPU.
Result<Device> FindDevice(const DeviceOptions& options);

}  // namespace celer
