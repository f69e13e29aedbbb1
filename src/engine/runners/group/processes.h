// Ranks that are processes, by the options that started them.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "celer/options.h"
#include "device/group/communicator.h"

namespace celer {

// Waits for the others.
Result<std::unique_ptr<Communicator>> JoinProcesses(const EngineOptions& options);

// What must be the same on all ranks, in one line.
std::string GroupIdentity(const EngineOptions& options);

}  // namespace celer
