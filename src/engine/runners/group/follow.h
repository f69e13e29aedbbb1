// A process that is not rank 0 of its group.
#pragma once

#include "base/result.h"
#include "celer/options.h"

namespace celer {

// Loads this rank's part of the model and runs what rank 0 says, until rank 0 ends: the error, if that was not on
// purpose. `joined`: whether there was a group.
Status FollowOtherProcess(const EngineOptions& options, bool* joined);

}  // namespace celer
