// The rate of cuBLASLt's matrix product, per dtype: what a GPU's arithmetic is worth in practice.
#pragma once

#include <vector>

#include "base/result.h"
#include "limits/probe/probe.h"
#include "limits/probe/probe_timer_cuda.h"

namespace celer::probe {

// On the current device. Dtypes that the GPU or the library does not have are left out.
Result<std::vector<Rate>> MeasureGemms(CudaTimer& timer, const ProbeOptions& options);

}  // namespace celer::probe
