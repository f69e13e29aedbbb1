// A group whose ranks are threads of one process: they read each other's memory.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "device/group/communicator.h"

namespace celer {

struct ThreadGroupOptions {
  int ranks = 1;
  std::chrono::milliseconds watchdog{30'000};
  // How long a rank that waits stays awake before it parks; none where there are more threads than CPUs.
  std::chrono::microseconds spin{3000};
};

// One communicator for each rank; each is used, and destroyed, by a thread of its own. One that is destroyed ends the
// group for those who still wait for it.
std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(const ThreadGroupOptions& options);

}  // namespace celer
