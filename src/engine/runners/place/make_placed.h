// From options to a model whose layers are on several devices.
#pragma once

#include <cstdint>
#include <memory>

#include "base/device.h"
#include "base/result.h"
#include "celer/options.h"
#include "device/thread_pool.h"
#include "engine/runners/place/placement.h"
#include "engine/runners/runner.h"

namespace celer {

// What options.placement makes of the model, and logs it. `device` is that of options.device.
Result<Placement> PlanFor(const EngineOptions& options, const Device& device, ThreadPool& pool);

// Of a placement that is not alone on one device.
Result<std::unique_ptr<Runner>> MakePlacedRunner(const EngineOptions& options, int64_t kv_host_blocks,
                                                 const Placement& placement,
                                                 std::unique_ptr<ThreadPool> pool);

}  // namespace celer
